//! Tool calls that follow the schemas of their tools.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nestling_runtime::{
    Constraint, ConstraintContext, ConstraintError, ConstraintSource, Starts, TokenMask, Writes,
};
use nestling_text::{OutputFormat, ToolSchema};
use serde_json::{Value, json};

use crate::call_grammar::{CallGrammar, Tool};
use crate::error::GuideError;
use crate::grammar::{CheckedGrammar, with_options};
use crate::guide::{CompiledGrammars, unavailable};
use crate::json_ending::JsonBounds;
use crate::limits::{COMPILED_MAX, TOOLS_MAX};
use crate::matcher::{CompiledGrammar, GrammarConstraint, GrammarMode};
use crate::vocabulary::Vocabulary;

/// Policy for tool calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ToolChoice {
    /// Tool calls are disabled: [`ToolChoice::tools`] removes the tools from the conversation.
    None,
    /// Optional tool calls. The arguments of a call follow the schema.
    #[default]
    Auto,
    /// One or more tool calls and no other output.
    Required,
    /// Exactly one call of this tool.
    Named(String),
}

impl ToolChoice {
    /// Reads "auto", "none", "required" or the name of a tool. `None` means "auto".
    ///
    /// ```
    /// use nestling_guide::ToolChoice;
    ///
    /// assert!(ToolChoice::of_name(Some("weather")).must_call());
    /// assert!(!ToolChoice::of_name(None).must_call());
    /// ```
    pub fn of_name(said: Option<&str>) -> Self {
        match said {
            None | Some("auto") => Self::Auto,
            Some("none") => Self::None,
            Some("required") => Self::Required,
            Some(name) => Self::Named(name.to_owned()),
        }
    }

    /// Returns whether the model must call a tool.
    pub fn must_call(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_))
    }

    /// Returns the tools that a conversation has under this choice.
    pub fn tools<'a>(&self, tools: &'a [ToolSchema]) -> &'a [ToolSchema] {
        match self {
            Self::None => &[],
            _ => tools,
        }
    }
}

/// A constraint on tool calls, for [`nestling_runtime::GenerateOptions::constraint`]. The conversation must
/// have the same tools.
#[derive(Debug, Clone)]
pub struct ToolGuide {
    tools: Vec<Tool>,
    choice: ToolChoice,
    /// Schema of an answer without calls, with the options of the grammar engine.
    answer: Option<Value>,
    /// Compiled grammars, keyed by the grammar's text, which depends on the model's syntax of calls.
    grammars: Arc<Mutex<BTreeMap<String, Arc<Grammar>>>>,
}

#[derive(Debug)]
struct Grammar {
    checked: CheckedGrammar,
    compiled: CompiledGrammars,
}

impl ToolGuide {
    /// Creates a guide for tool calls.
    ///
    /// ```
    /// use nestling_guide::{ToolChoice, ToolGuide};
    /// use nestling_text::ToolSchema;
    /// use serde_json::json;
    ///
    /// let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    /// let tools = [ToolSchema::function("weather", "Returns the forecast.", parameters)];
    /// assert!(ToolGuide::new(&tools, ToolChoice::Required).is_ok());
    /// assert!(ToolGuide::new(&tools, ToolChoice::Named("clock".into())).is_err());
    /// ```
    ///
    /// # Errors
    /// Fails if there are no tools or too many, if a tool has no name or its parameters cannot be compiled,
    /// or if `choice` names an unknown tool. Fails for [`ToolChoice::None`], which needs no constraint.
    pub fn new(tools: &[ToolSchema], choice: ToolChoice) -> Result<Self, GuideError> {
        GuideError::check("tools", tools.len(), TOOLS_MAX)?;
        let mut all = tools.iter().map(tool).collect::<Result<Vec<_>, _>>()?;
        if let ToolChoice::Named(name) = &choice {
            all.retain(|tool| tool.name == *name);
        }
        if all.is_empty() || choice == ToolChoice::None {
            let expected = "a tool of the conversation";
            let found = match &choice {
                ToolChoice::Named(name) => format!("`{name}`"),
                ToolChoice::None => "`none`".into(),
                ToolChoice::Auto | ToolChoice::Required => "a conversation without tools".into(),
            };
            return Err(GuideError::Invalid {
                what: "the choice of tools".into(),
                expected,
                found,
            });
        }
        let bytes = Vocabulary::of_bytes()?;
        for tool in &all {
            CompiledGrammar::new(&tool.arguments(), &bytes)?;
        }
        Ok(Self { tools: all, choice, answer: None, grammars: Arc::default() })
    }

    /// Requires that an answer without calls follows a JSON schema. It has no effect if calls are required.
    ///
    /// ```
    /// use nestling_guide::{ToolChoice, ToolGuide};
    /// use nestling_text::ToolSchema;
    /// use serde_json::json;
    ///
    /// let tools = [ToolSchema::function("weather", "Returns the forecast.", json!({}))];
    /// let guide = ToolGuide::new(&tools, ToolChoice::Auto)?;
    /// assert!(guide.with_answer(&json!({"type": "object"})).is_ok());
    /// # Ok::<(), nestling_guide::GuideError>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the schema cannot be compiled.
    pub fn with_answer(self, schema: &Value) -> Result<Self, GuideError> {
        let schema = with_options(schema)?.schema;
        let alone =
            CheckedGrammar::assembled(format!("start: %json {schema}\n"), "the answer's schema");
        CompiledGrammar::new(&alone, &Vocabulary::of_bytes()?)?;
        Ok(Self { answer: Some(schema), grammars: Arc::default(), ..self })
    }

    fn grammar(&self, text: String) -> Arc<Grammar> {
        // Entries are added as a whole, so that the map is valid after a panic.
        let mut known = self.grammars.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= COMPILED_MAX * TOOLS_MAX && !known.contains_key(&text) {
            known.clear();
        }
        let made = known.entry(text).or_insert_with_key(|text| {
            let mut checked = CheckedGrammar::assembled(text.clone(), "the tools' grammar");
            let parameters = self.tools.iter().map(Tool::parameters);
            checked.json = Some(JsonBounds::of(parameters.chain(&self.answer)));
            Arc::new(Grammar { checked, compiled: CompiledGrammars::default() })
        });
        Arc::clone(made)
    }

    fn compile(
        &self,
        text: String,
        vocabulary: &Arc<Vocabulary>,
    ) -> Result<CompiledGrammar, ConstraintError> {
        let grammar = self.grammar(text);
        grammar.compiled.get(vocabulary, &grammar.checked).map_err(unavailable)
    }
}

fn tool(schema: &ToolSchema) -> Result<Tool, GuideError> {
    let function = schema.0.get("function").unwrap_or(&schema.0);
    let name = schema.name().filter(|name| !name.is_empty()).ok_or_else(|| {
        let (what, expected) = ("a tool".into(), "a function with a name");
        GuideError::Invalid { what, expected, found: schema.0.to_string() }
    })?;
    let mut parameters = match function.get("parameters") {
        None | Some(Value::Null) => json!({}),
        Some(parameters) => parameters.clone(),
    };
    if let Value::Object(map) = &mut parameters {
        // Arguments must be an object, even if the schema does not require one.
        map.entry("type").or_insert_with(|| "object".into());
    }
    Tool::new(name, &parameters)
}

impl ConstraintSource for ToolGuide {
    fn constraint(
        &self,
        context: &ConstraintContext<'_>,
    ) -> Result<Box<dyn Constraint>, ConstraintError> {
        let vocabulary = Vocabulary::of_model(context).map_err(unavailable)?;
        let calls = CallGrammar::of(context).map_err(unavailable)?;
        let answer = self.answer.as_ref().filter(|_| self.choice == ToolChoice::Auto);
        if self.choice == ToolChoice::Auto && answer.is_none() {
            let OutputFormat::Tagged(_) = context.format else {
                // The marker contains the name of the called tool.
                let tools = self.tools.iter();
                let compiled = tools.map(|tool| {
                    let compiled = self.compile(CallGrammar::arguments_alone(tool), &vocabulary)?;
                    Ok((tool.name.clone(), compiled))
                });
                let compiled = compiled.collect::<Result<_, ConstraintError>>()?;
                return Ok(Box::new(NamedCalls { compiled, matcher: None }));
            };
            let manner = GrammarMode { starts: Starts::AtToolCall, writes: Writes::Calls };
            let compiled = self.compile(calls.behind_marker(&self.tools), &vocabulary)?;
            return Ok(Box::new(GrammarConstraint::new(&compiled, manner)));
        }
        let several = !matches!(self.choice, ToolChoice::Named(_));
        let grammar = calls.whole_answer(&self.tools, several, answer);
        let compiled = self.compile(grammar, &vocabulary)?;
        let manner = GrammarMode { starts: Starts::AfterReasoning, writes: Writes::Calls };
        Ok(Box::new(GrammarConstraint::new(&compiled, manner)))
    }
}

/// Constraint on the arguments of calls whose marker contains the tool's name. Calls of other tools are
/// unconstrained.
struct NamedCalls {
    compiled: BTreeMap<String, CompiledGrammar>,
    matcher: Option<GrammarConstraint>,
}

impl NamedCalls {
    fn at_work(&mut self) -> Result<&mut GrammarConstraint, ConstraintError> {
        self.matcher.as_mut().ok_or_else(|| ConstraintError::failed("no call has begun"))
    }
}

impl Constraint for NamedCalls {
    fn starts(&self) -> Starts {
        Starts::AtToolCall
    }

    fn writes(&self) -> Writes {
        Writes::Calls
    }

    fn start(&mut self, call: Option<&str>) -> Result<bool, ConstraintError> {
        let compiled = call.and_then(|name| self.compiled.get(name));
        let manner = GrammarMode { starts: Starts::AtToolCall, writes: Writes::Calls };
        self.matcher = compiled.map(|compiled| GrammarConstraint::new(compiled, manner));
        Ok(self.matcher.is_some())
    }

    fn set_tokens_left(&mut self, tokens: usize) {
        if let Some(matcher) = &mut self.matcher {
            matcher.set_tokens_left(tokens);
        }
    }

    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        self.at_work()?.mask(mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.at_work()?.accept(token)
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        self.at_work()?.forced()
    }

    fn may_end(&mut self) -> Result<bool, ConstraintError> {
        self.at_work()?.may_end()
    }
}
