// Cancels an answer from another thread: Cancel MODEL.
package nestling.examples.cancel

import kotlin.concurrent.thread
import kotlinx.coroutines.runBlocking
import nestling.EndReason
import nestling.GenerateOptions
import nestling.Model

fun main(args: Array<String>) = runBlocking {
    Model.open(args[0]).use { model ->
        val session = model.session()
        // Without end tokens, the output continues until the context is full.
        val options = GenerateOptions(temperature = 0.0, ignoreEnd = true)
        val answer = session.generate("The storm came up in the night, and", options)
        var asked = 0L
        val stopper = thread {
            Thread.sleep(300)
            asked = System.nanoTime()
            answer.cancel()
        }
        val reason = answer.answer().summary.reason
        stopper.join()
        val late = (System.nanoTime() - asked) / 1_000_000
        check(reason == EndReason.CANCELLED && late < 250) { "$reason, $late ms after it was asked" }
        println("cancelled")
    }
}
