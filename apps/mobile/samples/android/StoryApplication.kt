// Sample for Android, not compiled by any check: it needs the SDK.
//
// The application holds one model. Android announces low memory through onTrimMemory, and the model's budget falls.
package nestling.samples

import android.app.Application
import android.content.ComponentCallbacks2
import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.async
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.launch
import nestling.Model
import nestling.NestlingException
import nestling.OpenOptions
import nestling.Residence
import nestling.greedy
import nestling.pieces

class StoryApplication : Application() {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)

    /** Budget of the model while memory is not low, in bytes. */
    private val budget = 512uL shl 20

    // Experts that do not fit the budget are read from the file, so that a smaller budget is possible at any time.
    private val model = scope.async {
        val path = File(filesDir, "model.nest").path
        Model.open(path, OpenOptions(memoryBudget = budget, contextLength = 2048u, residence = Residence.STREAMED))
    }

    /** Text of an answer, piece by piece. A collector that ends with its screen cancels the answer. */
    fun tell(prompt: String): Flow<String> = flow {
        emitAll(model.await().session().generate(prompt, greedy(maxTokens = 200)).pieces())
    }

    override fun onTrimMemory(level: Int) {
        super.onTrimMemory(level)
        // Not on the main thread: a smaller budget waits for the running step.
        scope.launch { model.await().shrink(level) }
    }

    /** Restores the budget, for example when a screen becomes visible. */
    fun restoreBudget() {
        scope.launch { model.await().setMemoryBudget(budget) }
    }

    private fun Model.shrink(level: Int) {
        val used = status().memoryUsed
        val smaller = if (level >= ComponentCallbacks2.TRIM_MEMORY_BACKGROUND) used / 4uL else used / 2uL
        try {
            setMemoryBudget(smaller)
        } catch (_: NestlingException.NoRoom) {
            // Weights and sessions alone need more. The experts can go.
            relievePressure(used)
        }
    }
}
