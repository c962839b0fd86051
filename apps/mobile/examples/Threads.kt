// Two sessions in two threads generate the same text as each one alone: Threads MODEL.
package nestling.examples.threads

import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.awaitAll
import kotlinx.coroutines.runBlocking
import nestling.Model
import nestling.greedy

private suspend fun story(model: Model, prompt: String): String =
    model.session().use { session -> session.generate(prompt, greedy(maxTokens = 32)).text() }

fun main(args: Array<String>) = runBlocking {
    Model.open(args[0]).use { model ->
        val prompts = listOf("The captain said", "In the morning the wind")
        val alone = prompts.map { story(model, it) }
        val together = prompts.map { async(Dispatchers.Default) { story(model, it) } }.awaitAll()
        for ((prompt, text) in prompts.zip(together)) println(prompt + text)
        check(alone == together) { "alone they wrote $alone" }
    }
}
