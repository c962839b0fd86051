// Runs a GGUF file in place, and prints the tokens that it generates: Gguf FILE.
package nestling.examples.gguf

import kotlinx.coroutines.runBlocking
import nestling.Event
import nestling.GenerateOptions
import nestling.Model
import nestling.events

fun main(args: Array<String>) = runBlocking {
    Model.open(args[0]).use { model ->
        val options = GenerateOptions(maxTokens = 8u, temperature = 0.0, tokenEvents = true, ignoreEnd = true)
        val prompt = listOf(3u, 1u, 4u, 1u, 5u)
        model.session().generateTokens(prompt, options).events().collect { event ->
            if (event is Event.Token) println(event.info.token)
        }
    }
}
