// Tests of the bindings on the JVM: Bindings MODEL GGUF.
package nestling.tests

import java.util.concurrent.atomic.AtomicInteger
import kotlin.time.measureTime
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import kotlinx.coroutines.yield
import nestling.ChatOptions
import nestling.EndReason
import nestling.Engine
import nestling.EngineOptions
import nestling.Event
import nestling.GenerateOptions
import nestling.Hidden
import nestling.ListenerException
import nestling.LogitBias
import nestling.Model
import nestling.NestlingException
import nestling.OpenListener
import nestling.OpenOptions
import nestling.Residence
import nestling.Sampling
import nestling.SnapshotContents
import nestling.events
import nestling.greedy
import nestling.pieces

private const val PROMPT = "The captain said"

private fun equal(found: Any?, expected: Any?) = check(found == expected) { "expected $expected, found $found" }

private suspend inline fun <reified E : NestlingException> fails(work: suspend () -> Unit): E {
    try {
        work()
    } catch (error: NestlingException) {
        check(error is E) { "expected ${E::class.simpleName}, found $error" }
        check(!error.message.isNullOrBlank()) { "$error has no message" }
        return error
    }
    error("expected ${E::class.simpleName}, found no error")
}

private suspend fun opening(model: String) {
    val told = AtomicInteger()
    val listener = object : OpenListener {
        override fun onProgress(partsDone: ULong, partsTotal: ULong) {
            check(partsDone <= partsTotal)
            told.incrementAndGet()
        }
    }
    Model.open(model, OpenOptions(contextLength = 128u), listener = listener).use {
        equal(it.status().contextLength, 128uL)
        check(it.status().hasChat && it.status().vocabSize > 0uL)
    }
    check(told.get() > 0) { "the listener heard nothing" }
    val broken = object : OpenListener {
        override fun onProgress(partsDone: ULong, partsTotal: ULong): Unit = error("planted")
    }
    val failed = fails<NestlingException.Caller> { Model.open(model, listener = broken).close() }
    check("planted" in failed.message!!) { failed.message!! }
    val refuses = object : OpenListener {
        override fun onProgress(partsDone: ULong, partsTotal: ULong): Unit = throw ListenerException.Stop("enough")
    }
    fails<NestlingException.Stopped> { Model.open(model, listener = refuses).close() }
}

private suspend fun errors(path: String, model: Model) {
    fails<NestlingException.MissingFile> { Model.open("$path.absent").close() }
    fails<NestlingException.Source> { Model.open("/dev/null").close() }
    fails<NestlingException.Caller> { Model.open(path, OpenOptions(level = 5u)).close() }
    fails<NestlingException.Caller> { Model.open(path, OpenOptions(device = "abacus")).close() }
    fails<NestlingException.NoRoom> { Model.open(path, OpenOptions(memoryBudget = 1uL)).close() }
    val session = model.session()
    fails<NestlingException.Caller> { session.generate(PROMPT, GenerateOptions(temperature = -1.0)) }
    fails<NestlingException.Caller> { session.generate(PROMPT, GenerateOptions(temperature = Double.NaN)) }
    fails<NestlingException.Caller> { session.generate(PROMPT, GenerateOptions(deadline = -1.0)) }
    fails<NestlingException.Caller> { session.generate(PROMPT, GenerateOptions(regex = "(")) }
    fails<NestlingException.Caller> { session.generate(PROMPT, GenerateOptions(regex = "a", jsonSchema = "{}")) }
    fails<NestlingException.Caller> { session.generate(PROMPT, GenerateOptions(toolChoice = "weather")) }
    fails<NestlingException.Caller> {
        session.generate(PROMPT, GenerateOptions(sampling = Sampling(samplers = listOf("abacus"))))
    }
    fails<NestlingException.Caller> { session.generateTokens(listOf(UInt.MAX_VALUE), greedy(1)) }
    fails<NestlingException.Caller> { session.generate("word ".repeat(20_000), greedy(1)) }
    fails<NestlingException.Caller> { session.generateConversation("{", greedy(1)) }
    fails<NestlingException.Caller> { model.chat(ChatOptions(messages = "{}")).close() }
    fails<NestlingException.Caller> { model.restore(ByteArray(100)).close() }
    equal(session.tokens(), emptyList<UInt>())
    val answer = session.generate(PROMPT, GenerateOptions(temperature = 0.0, ignoreEnd = true))
    fails<NestlingException.Busy> { session.truncate(0uL) }
    answer.cancel()
    equal(answer.answer().summary.reason, EndReason.CANCELLED)
    fails<NestlingException.Stopped> { answer.answer() }
    equal(answer.next(), null)
}

private suspend fun streaming(model: Model) {
    val whole = model.session().generate(PROMPT, greedy(32)).answer()
    equal(whole.summary.reason, EndReason.LENGTH)
    equal(whole.summary.usage.completionTokens, 32uL)
    val pieces = model.session().generate(PROMPT, greedy(32)).pieces().toList()
    check(pieces.size > 4) { "only ${pieces.size} pieces" }
    equal(pieces.joinToString(""), whole.text)
    val likely = GenerateOptions(maxTokens = 4u, temperature = 0.0, topLogprobs = 3u, promptLogprobs = 0u)
    val events = model.session().generate(PROMPT, likely).events().toList()
    val tokens = events.filterIsInstance<Event.Token>().map { it.info }
    equal(tokens.size, 4)
    check(tokens.all { it.top.size == 3 && it.top[0].token == it.token && it.logProb!! <= 0f })
    equal(model.decode(tokens.map { it.token }), String(tokens.flatMap { it.bytes.toList() }.toByteArray()))
    equal(events.filterIsInstance<Event.PromptToken>().size, model.encode(PROMPT).size)
    val rows = GenerateOptions(maxTokens = 0u, hidden = Hidden.LAST)
    val row = model.session().generate(PROMPT, rows).events().toList().filterIsInstance<Event.HiddenRow>().single()
    equal(row.values.size.toULong(), model.status().hiddenSize)
    val form = GenerateOptions(regex = "(calm|wild)\\.")
    check(model.session().generate("The sea is", form).text() in listOf("calm.", "wild."))
    val first = tokens[0].token
    val biased = greedy(1).copy(sampling = Sampling(logitBias = listOf(LogitBias(first, Float.NEGATIVE_INFINITY))))
    val other = model.session().generate(PROMPT, biased.copy(tokenEvents = true)).events().toList()
    check(other.filterIsInstance<Event.Token>().single().info.token != first)
}

private suspend fun cancellation(path: String, model: Model) {
    val endless = GenerateOptions(temperature = 0.0, ignoreEnd = true)
    val session = model.session()
    // The collector stops after the first piece.
    val first = session.generate(PROMPT, endless)
    check(first.pieces().first().isNotEmpty())
    equal(first.answer().summary.reason, EndReason.CANCELLED)
    // A coroutine that waits is cancelled.
    val second = session.generate(PROMPT, endless)
    runBlocking {
        val reads = launch(Dispatchers.Default) { second.answer() }
        delay(50)
        val late = measureTime { reads.cancelAndJoin() }
        check(late.inWholeMilliseconds < 250) { "cancelled after $late" }
    }
    equal(session.generate(PROMPT, greedy(1)).answer().summary.reason, EndReason.LENGTH)
    // A handle is closed.
    val third = session.generate(PROMPT, endless)
    third.next()
    third.close()
    equal(session.generate(PROMPT, greedy(1)).answer().summary.reason, EndReason.LENGTH)
    // Two calls wait for one answer: the second one is refused.
    val fourth = session.generate(PROMPT, endless)
    runBlocking {
        val reads = async(Dispatchers.Default) { fourth.answer() }
        delay(20)
        fails<NestlingException.Busy> { fourth.next() }
        fourth.cancel()
        equal(reads.await().summary.reason, EndReason.CANCELLED)
    }
    // An opening is cancelled.
    runBlocking {
        val opens = launch(Dispatchers.Default) { Model.open(path).close() }
        yield()
        opens.cancelAndJoin()
    }
}

private suspend fun budgets(path: String) {
    val options = OpenOptions(memoryBudget = 64uL shl 20, contextLength = 256u, residence = Residence.STREAMED)
    Model.open(path, options).use { model ->
        val text = model.session().generate(PROMPT, greedy(24)).text()
        val used = model.status().memoryUsed
        model.setMemoryBudget(used / 2uL)
        check(model.status().memoryUsed <= used / 2uL)
        equal(model.status().memoryBudget, used / 2uL)
        equal(model.session().generate(PROMPT, greedy(24)).text(), text)
        val before = model.status().expertBytes!!
        model.relievePressure(ULong.MAX_VALUE)
        check(model.status().expertBytes!! < before) { "$before bytes before, ${model.status().expertBytes} after" }
        fails<NestlingException.NoRoom> { model.setMemoryBudget(1uL) }
        model.setMemoryBudget(ULong.MAX_VALUE)
    }
    Engine(EngineOptions(memoryBudget = 512uL shl 20, threads = 1u)).use { engine ->
        Model.open(path, engine = engine).use { first ->
            val used = engine.memoryUsed()
            Model.open(path, engine = engine).use { check(engine.memoryUsed() > used) }
            equal(first.status().memoryBudget, engine.memoryBudget())
        }
        fails<NestlingException.Caller> { Model.open(path, OpenOptions(threads = 1u), engine).close() }
        repeat(20) {
            Model.open(path, engine = engine).use { model ->
                model.session().use { session -> session.generate(PROMPT, greedy(1)).use { it.text() } }
            }
            // The thread of the engine releases a model just after its last event.
            withTimeout(5_000) { while (engine.memoryUsed() > 0uL) delay(1) }
        }
    }
}

private suspend fun sessions(model: Model) {
    val session = model.session()
    val begun = session.generate(PROMPT, greedy(8)).text()
    val tokens = session.tokens()
    val fork = session.fork()
    val snapshots = SnapshotContents.entries.map { session.snapshot(it) }
    val rest = session.generateTokens(emptyList(), greedy(8)).text()
    equal(fork.generateTokens(emptyList(), greedy(8)).text(), rest)
    for (snapshot in snapshots) {
        val restored = model.restore(snapshot)
        equal(restored.tokens(), tokens)
        equal(restored.generateTokens(emptyList(), greedy(8)).text(), rest)
    }
    equal(model.session().generate(PROMPT, greedy(16)).text(), begun + rest)
    session.truncate(tokens.size.toULong())
    equal(session.tokens(), tokens)
    session.append(model.encode(" and"))
    check(session.tokens().size > tokens.size)
}

private suspend fun chats(model: Model) {
    val options = greedy(12)
    val chat = model.chat(ChatOptions(system = "You tell stories."))
    chat.send("Tell me a story about a ship.", options).answer()
    val later = model.chat(ChatOptions(messages = chat.transcript()))
    equal(later.transcript(), chat.transcript())
    val next = chat.send("Go on.", options).text()
    equal(later.send("Go on.", options).text(), next)
    equal(chat.droppedMessages(), 0uL)
    check(chat.session().tokens().isNotEmpty())
    val conversation = """{"messages": [{"role": "user", "content": "Tell me a story about a ship."}]}"""
    val alone = model.session().generateConversation(conversation, options).text()
    equal(model.chat().send("Tell me a story about a ship.", options).text(), alone)
    check(model.conversationTokens(conversation).isNotEmpty())
    fails<NestlingException.Caller> { chat.replyToTools(listOf("rain"), options) }
}

fun main(args: Array<String>): Unit = runBlocking {
    val (path, gguf) = args
    opening(path)
    Model.open(path).use { model ->
        errors(path, model)
        streaming(model)
        cancellation(path, model)
        sessions(model)
        chats(model)
    }
    budgets(path)
    Model.open(gguf).use { it.session().generateTokens(listOf(3u, 1u), greedy(2)).answer() }
    println("bindings: opening, errors, streaming, cancellation, sessions, chats, budgets")
}
