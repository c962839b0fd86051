package nestling

import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.mapNotNull

/** Events of the answer. It is cancelled if the collector ends early or is cancelled. */
fun Generation.events(): Flow<Event> = flow {
    try {
        while (true) emit(next() ?: break)
    } finally {
        cancel()
    }
}

/** Text of the answer, piece by piece. It is cancelled if the collector ends early or is cancelled. */
fun Generation.pieces(): Flow<String> = events().mapNotNull { (it as? Event.Text)?.text }

/** Options of an answer that always takes the likeliest token. */
fun greedy(maxTokens: Int? = null): GenerateOptions =
    GenerateOptions(maxTokens = maxTokens?.toUInt(), temperature = 0.0)
