// A session that continues in another process: Snapshot MODEL save FILE, then Snapshot MODEL restore FILE.
package nestling.examples.snapshot

import java.io.File
import kotlinx.coroutines.runBlocking
import nestling.Model
import nestling.SnapshotContents
import nestling.greedy

fun main(args: Array<String>) = runBlocking {
    val (path, what, file) = args
    Model.open(path).use { model ->
        if (what == "save") {
            val session = model.session()
            println(session.generate("The captain said", greedy(maxTokens = 16)).text())
            File(file).writeBytes(session.snapshot(SnapshotContents.TOKENS_AND_PAGES))
        } else {
            val session = model.restore(File(file).readBytes())
            println(session.generateTokens(emptyList(), greedy(maxTokens = 16)).text())
        }
    }
}
