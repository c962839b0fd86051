// Makes a model call a tool, and returns the result to it: Tool MODEL, one whose chat template knows tools.
package nestling.examples.tool

import kotlinx.coroutines.runBlocking
import nestling.ChatOptions
import nestling.Event
import nestling.GenerateOptions
import nestling.Model
import nestling.events

private const val TOOLS = """[{"type": "function", "function": {"name": "weather", "parameters":
    {"type": "object", "required": ["city", "days"], "additionalProperties": false, "properties":
        {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}}]"""

fun main(args: Array<String>) = runBlocking {
    Model.open(args[0]).use { model ->
        val chat = model.chat(ChatOptions(tools = TOOLS))
        val mustCall = GenerateOptions(maxTokens = 300u, temperature = 0.0, toolChoice = "weather")
        val results = mutableListOf<String>()
        chat.send("Will it rain in Bergen?", mustCall).events().collect { event ->
            if (event is Event.ToolCallDone) {
                println("${event.call.name} ${event.call.arguments}")
                results += """{"rain": true}"""
            }
        }
        // The next turn is an answer without tools.
        val plain = GenerateOptions(maxTokens = 16u, temperature = 0.0, toolChoice = "none")
        println(chat.replyToTools(results, plain).text())
    }
}
