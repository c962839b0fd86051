// Halves the memory of a streamed model while it writes: Budget MODEL.
package nestling.examples.budget

import kotlinx.coroutines.runBlocking
import nestling.Model
import nestling.NestlingException
import nestling.OpenOptions
import nestling.Residence
import nestling.greedy
import nestling.pieces

fun main(args: Array<String>) = runBlocking {
    val options = OpenOptions(
        memoryBudget = 64uL shl 20,
        contextLength = 256u,
        residence = Residence.STREAMED,
    )
    Model.open(args[0], options).use { model ->
        var half = 0uL
        model.session().generate("The captain said", greedy(maxTokens = 40)).pieces().collect { text ->
            if (half == 0uL) {
                half = model.status().memoryUsed / 2uL
                model.setMemoryBudget(half)
            }
            print(text)
        }
        println()
        val used = model.status().memoryUsed
        check(used <= half) { "$used bytes in use, $half were allowed" }
        // A budget that is too small is rejected, and nothing changes.
        try {
            model.setMemoryBudget(1uL)
            error("1 byte was accepted")
        } catch (_: NestlingException.NoRoom) {
        }
    }
}
