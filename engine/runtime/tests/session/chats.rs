//! Chats with a transcript, and calls that never block.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::constraint_starts::{Script, tokenizer};
use super::fake::*;
use super::stalls::letters;
use nestling_core::driver::block_on;
use nestling_core::{CancelToken, EngineError, ErrorClass};
use nestling_runtime::{
    Chat, Conversation, Engine, Event, FinishReason, GenerateOptions, Input, Model,
    SamplingOptions, Starts, Writes,
};
use nestling_text::{ChatTemplate, Message, Role, Tokenizer, ToolSchema};
use serde_json::json;

/// Template that renders each message after the first letter of its role.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}";

fn talker(engine: &Engine, runner: FakeRunner) -> Model {
    let template = ChatTemplate::new(TEMPLATE).unwrap();
    model_of(engine, runner, Some(letters()), Some(template))
}

fn slow_talker(engine: &Engine) -> Model {
    let mut runner = FakeRunner::new(512, 64, 32);
    runner.step_time = Duration::from_millis(2);
    talker(engine, runner)
}

fn text(message: &Message) -> String {
    message.content.as_ref().map(|content| content.text().into_owned()).unwrap()
}

#[test]
fn a_chat_says_what_whole_conversations_say() {
    for engine in [engine(), caller_engine()] {
        let model = talker(&engine, FakeRunner::new(512, 64, 64));
        let mut messages = vec![];
        let mut chat = Chat::new(model.session(), Conversation::default());
        for (turn, said) in ["abc", "de", "fghi"].into_iter().enumerate() {
            messages.push(Message::user(said));
            let whole = model.session().generate(messages.clone(), &greedy(9)).unwrap();
            let (expected, _) = whole.into_answer().unwrap();
            let (answer, finished) = chat.send(said, &greedy(9)).unwrap().into_answer().unwrap();
            assert_eq!(answer, expected);
            assert_eq!(finished.message, Message::assistant(answer.as_str()));
            messages.push(Message::assistant(answer));
            assert_eq!(chat.transcript(), messages, "turn {turn}");
        }
        assert!(chat.open_calls().is_empty());
        // An earlier turn is replaced.
        chat.conversation_mut().unwrap().messages.truncate(2);
        drop(chat.send("other", &greedy(3)).unwrap().into_answer().unwrap());
        assert_eq!((chat.transcript().len(), text(&chat.transcript()[2])), (4, "other".into()));
    }
}

#[test]
fn a_prompt_that_was_made_before_is_answered_as_what_it_was_made_of() {
    let engine = engine();
    let model = talker(&engine, FakeRunner::new(128, 64, 16));
    let never = CancelToken::new();
    let messages = vec![Message::user("abc")];
    let inputs = [Input::from(messages), Input::from("def"), Input::from(vec![3, 1, 4])];
    for input in inputs {
        let (mut whole, mut made) = (model.session(), model.session());
        let expected = whole.generate(input.clone(), &greedy(9)).unwrap().into_text().unwrap();
        let prompt = model.prompt(input, 1, &never).unwrap();
        // Independent of the session's previous history.
        made.append(&[7, 7]).unwrap();
        for _ in 0..2 {
            let answer = made.generate(prompt.clone(), &greedy(9)).unwrap().into_text().unwrap();
            assert_eq!(answer, expected);
            assert_eq!(made.tokens().unwrap(), whole.tokens().unwrap());
            assert!(made.tokens().unwrap().starts_with(prompt.tokens()));
        }
    }
    let long = model.prompt(vec![1; 128], 1, &never).unwrap_err();
    assert!(matches!(long, EngineError::ContextFull { limit: 128, wanted: 129 }), "{long}");
    let full = model.prompt(vec![1; 128], 0, &never).unwrap();
    let error = model.session().generate(full, &greedy(1)).unwrap_err();
    assert!(matches!(error, EngineError::ContextFull { .. }), "{error}");
    let stopped = CancelToken::new();
    stopped.cancel();
    let error = model.prompt("abc", 0, &stopped).unwrap_err();
    assert!(matches!(error, EngineError::Cancelled), "{error}");
}

#[test]
fn what_was_said_before_a_stop_is_in_the_transcript() {
    for engine in [engine(), caller_engine()] {
        let model = slow_talker(&engine);
        let whole = |turns: &[Message]| {
            let options = greedy(300);
            model.session().generate(turns, &options).unwrap().into_answer().unwrap().0
        };
        let mut chat = Chat::new(model.session(), Conversation::default());
        let first = [Message::user("abc")];
        let all = whole(&first);
        // Cancelled, then read to its end.
        let mut generation = chat.send("abc", &greedy(300)).unwrap();
        let mut read = String::new();
        while read.len() < 5 {
            if let Event::Text(more) = generation.next().unwrap().unwrap() {
                read += &more;
            }
        }
        assert!(matches!(chat.send("x", &greedy(1)), Err(EngineError::SessionBusy)));
        assert!(text(&chat.transcript()[1]).starts_with(&read));
        generation.cancel();
        let (rest, finished) = generation.into_answer().unwrap();
        assert_eq!(finished.reason, FinishReason::Cancelled);
        let transcript = chat.transcript();
        let said = text(&transcript[1]);
        assert_eq!((said.clone(), transcript.len()), (read + &rest, 2));
        assert!(all.starts_with(&said) && said.len() < all.len(), "{said}");
        assert_eq!(finished.message, transcript[1]);

        // Dropped immediately: the next turn waits for its end and continues from the output so far.
        drop(chat.send("de", &greedy(300)).unwrap());
        let (answer, _) = chat.send("f", &greedy(9)).unwrap().into_answer().unwrap();
        let transcript = chat.transcript();
        let roles: Vec<_> = transcript.iter().map(|message| message.role.clone()).collect();
        let turn = [Role::User, Role::Assistant];
        assert_eq!(roles, [turn.clone(), turn.clone(), turn].concat());
        let options = greedy(9);
        let again = model.session().generate(&transcript[..5], &options).unwrap();
        assert_eq!(again.into_text().unwrap(), answer);
    }
}

#[test]
fn what_is_refused_leaves_the_transcript_alone() {
    let engine = engine();
    let model = talker(&engine, FakeRunner::new(128, 64, 16));
    let mut chat = Chat::new(model.session(), Conversation::default());
    drop(chat.send("abc", &greedy(5)).unwrap().into_answer().unwrap());
    let before = chat.transcript();
    let long = "x".repeat(200);
    let full = chat.send(long.as_str(), &greedy(5)).unwrap_err();
    assert!(matches!(full, EngineError::ContextFull { .. }), "{full}");
    let full = block_on(chat.send_async(long, &greedy(5))).unwrap_err();
    assert!(matches!(full, EngineError::ContextFull { .. }), "{full}");
    let nothing_asked = chat.reply_to_tools(vec![Message::tool("call_0", "1")], &greedy(5));
    let error = nothing_asked.unwrap_err();
    assert_eq!(error.to_string(), "results of tool calls: expected those of none, found call_0");
    assert_eq!(error.class(), ErrorClass::Caller);
    assert_eq!(chat.transcript(), before);

    let mut chat = Chat::new(model.session(), Conversation::default()).dropping_old_turns(10);
    for _ in 0..9 {
        drop(chat.send("abcdefghij", &greedy(10)).unwrap().into_answer().unwrap());
    }
    assert_eq!(chat.transcript().len(), 18, "the transcript keeps what the prompt leaves out");
    assert!(chat.dropped_messages() > 0 && chat.dropped_messages().is_multiple_of(2));
}

#[test]
fn tool_calls_are_said_and_replied_to() {
    let engine = engine();
    let text = "{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}</tool_call>";
    let script = Script { text, starts: Starts::AtToolCall, writes: Writes::Calls };
    let tokenizer = tokenizer();
    let bias = vec![(tokenizer.token_to_id("<tool_call>").unwrap(), 1e6)];
    let template = "{{ messages[-1].content }}{% if tools %}<tool_call>{% endif %}";
    let template = ChatTemplate::new(template).unwrap();
    let model = model_of(&engine, FakeRunner::new(256, 64, 16), Some(tokenizer), Some(template));
    let tools = vec![ToolSchema::function("f", "Does.", json!({}))];
    let conversation = Conversation { tools, ..Conversation::default() };
    let options = GenerateOptions {
        sampling: SamplingOptions { logit_bias: Some(bias), ..SamplingOptions::greedy() },
        max_tokens: Some(2 + text.len() - "</tool_call>".len()),
        constraint: Some(Arc::new(script)),
        ..GenerateOptions::default()
    };
    let mut chat = Chat::new(model.session(), conversation);
    let (said, finished) = chat.send("abc", &options).unwrap().into_answer().unwrap();
    assert_eq!(said, "");
    let calls = chat.open_calls();
    assert_eq!((calls.len(), calls[0].name.as_str()), (1, "f"));
    assert_eq!(calls[0].arguments, json!({"a": [1, 2]}));
    assert_eq!(finished.message.content, None);
    assert_eq!(chat.transcript()[1], finished.message);
    for wrong in [vec![], vec![Message::tool("call_9", "1")], vec![Message::tool("call_0", "1"); 2]]
    {
        let error = chat.reply_to_tools(wrong, &greedy(3)).unwrap_err();
        assert!(matches!(error, EngineError::ToolReplies { .. }), "{error}");
    }
    let reply = vec![Message::tool(calls[0].id.as_str(), "3")];
    drop(block_on(chat.reply_to_tools_async(reply.clone(), &greedy(3))).unwrap().into_answer());
    assert!(chat.open_calls().is_empty());
    assert_eq!((chat.transcript().len(), &chat.transcript()[2]), (4, &reply[0]));
}

#[test]
fn an_async_turn_never_blocks() {
    for engine in [engine(), caller_engine()] {
        let model = slow_talker(&engine);
        let mut chat = Chat::new(model.session(), Conversation::default());
        let answer = block_on(async {
            let generation = chat.send_async("abc", &greedy(9)).await?;
            Ok::<_, EngineError>(generation.await?.0)
        });
        let whole = model.session().generate(vec![Message::user("abc")], &greedy(9)).unwrap();
        assert_eq!(answer.unwrap(), whole.into_text().unwrap());

        // Neither a dropped answer nor slow text blocks a poll.
        drop(chat.send("de", &greedy(300)).unwrap());
        let answer = block_on(async { chat.send_async("f", &greedy(5)).await?.await });
        assert_eq!(answer.unwrap().1.usage.completion_tokens, 5);
        assert_eq!(chat.transcript().len(), 6);
    }
}

/// The template takes seconds. Polls return immediately, and dropping the future stops it.
#[test]
fn a_dropped_start_leaves_the_history_as_it_was() {
    let engine = engine();
    let slow = "{% for i in range(99999) %}{% for j in range(99999) %}{{ messages[0].content|upper|length }}{% endfor %}{% endfor %}";
    let slow = ChatTemplate::new(slow).unwrap();
    let model = model_of(&engine, FakeRunner::new(512, 64, 32), Some(letters()), Some(slow));
    let mut session = model.session();
    session.append(&[1, 2, 3]).unwrap();
    let options = greedy(5);
    let messages = vec![Message::user("abc")];
    let mut start = Box::pin(session.generate_async(messages, &options));
    let began = Instant::now();
    let polled = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending() && began.elapsed() < Duration::from_millis(100), "{polled:?}");
    drop(start);
    session.append(&[4]).unwrap();
    assert_eq!(session.tokens().unwrap(), [1, 2, 3, 4]);
    let tokens = tokens_of(session.generate(vec![5], &greedy(6)).unwrap());
    assert_eq!(tokens, expected(&[1, 2, 3, 4, 5], 6));
}

#[test]
fn a_loop_that_draws_reads_what_is_there_and_never_waits() {
    for engine in [engine(), caller_engine()] {
        let mut runner = FakeRunner::new(512, 64, 32);
        runner.step_time = Duration::from_millis(3);
        let model = model(&engine, runner);
        let mut generation = model.session().generate(prompt(1, 10), &greedy(20)).unwrap();
        let (mut tokens, mut frames) = (vec![], 0);
        'frames: loop {
            frames += 1;
            loop {
                match generation.try_next() {
                    Poll::Ready(Some(Ok(Event::Token(token)))) => tokens.push(token.token),
                    Poll::Ready(Some(event)) => drop(event.unwrap()),
                    Poll::Ready(None) => break 'frames,
                    Poll::Pending => break,
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(tokens, expected(&prompt(1, 10), 20));
        assert!(frames > 5, "{frames} frames");
    }
}

#[test]
fn tokens_say_their_bytes() {
    let engine = engine();
    let words = ('!'..='~').map(String::from).zip(0..);
    let vocab: serde_json::Map<_, _> = words.map(|(word, id)| (word, id.into())).collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
        "use_regex": false});
    let file = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": bytes, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    let tokenizer = Tokenizer::from_bytes("tokenizer.json", file.to_string().as_bytes()).unwrap();
    let model = model_with(&engine, FakeRunner::new(512, 64, 32), Some(tokenizer));
    let options = GenerateOptions { prompt_logprobs: Some(0), ..greedy(40) };
    let generation = model.session().generate("abc", &options).unwrap();
    let (mut prompt, mut bytes, mut text) = (vec![], vec![], String::new());
    for event in generation {
        match event.unwrap() {
            Event::PromptToken(token) => prompt.extend(token.bytes),
            Event::Token(token) => bytes.extend(token.bytes),
            Event::Text(more) => text += &more,
            _ => {}
        }
    }
    assert_eq!(prompt, b"abc");
    assert_eq!((bytes.len(), text.as_bytes()), (40, &bytes[..]));
}
