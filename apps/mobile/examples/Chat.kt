// Streams two turns of a conversation: Chat MODEL.
package nestling.examples.chat

import kotlinx.coroutines.runBlocking
import nestling.Model
import nestling.greedy
import nestling.pieces

fun main(args: Array<String>) = runBlocking {
    Model.open(args[0]).use { model ->
        model.chat().use { chat ->
            for (said in listOf("Tell me a story about a ship.", "And what did the captain say?")) {
                chat.send(said, greedy(maxTokens = 40)).use { answer ->
                    answer.pieces().collect { print(it) }
                }
                println()
            }
            println(chat.transcript())
        }
    }
}
