//! Public interface: a template is parsed once and rendered many times.

use std::fmt;

use serde_json::{Map, Value as Json};

use super::error::{Fault, TemplateError};
use super::functions::Clock;
use super::json::from_json;
use super::limits::RenderLimits;
use super::machine::Machine;
use super::meter::Meter;
use super::parser::parse;
use super::program::Program;
use super::text::Text;

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    program: Program,
}

/// Options of a rendering.
///
/// ```
/// use nestling_template::{RenderOptions, Template};
///
/// let date = |format: &str| Ok::<_, String>(format.replace("%Y", "2026"));
/// let options = RenderOptions { strftime_now: Some(&date), ..RenderOptions::default() };
/// let template = Template::parse("It is {{ strftime_now('%Y') }}.")?;
/// assert_eq!(template.render(&serde_json::Map::new(), &options)?, "It is 2026.");
/// # Ok::<(), nestling_template::TemplateError>(())
/// ```
#[derive(Clone, Copy)]
pub struct RenderOptions<'a> {
    /// Limits on memory, work and time.
    pub limits: RenderLimits,
    /// Called about once per millisecond; `true` cancels the rendering.
    pub cancelled: &'a dyn Fn() -> bool,
    /// Implementation of `strftime_now`: returns a formatted date or an error message. Without it, templates
    /// that use the date fail.
    pub strftime_now: Option<Clock<'a>>,
}

impl Default for RenderOptions<'_> {
    fn default() -> Self {
        Self { limits: RenderLimits::default(), cancelled: &|| false, strftime_now: None }
    }
}

impl fmt::Debug for RenderOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderOptions").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Template {
    /// Parses a template.
    ///
    /// ```
    /// use nestling_template::{Template, TemplateErrorKind};
    ///
    /// assert!(Template::parse("{{ 1 + 2 }}").is_ok());
    /// let kind = Template::parse("{{ 1 + }}").err().map(|error| error.kind);
    /// assert!(matches!(kind, Some(TemplateErrorKind::Syntax(_))));
    /// ```
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        Ok(Self { program: parse(source)? })
    }

    /// Returns whether the template mentions a variable, attribute or key. A variable that it does not
    /// mention has no effect.
    ///
    /// ```
    /// # use nestling_template::Template;
    /// let template = Template::parse("{% if tools %}{{ tools | tojson }}{% endif %}")?;
    /// assert!(template.names("tools") && !template.names("enable_thinking"));
    /// # Ok::<(), nestling_template::TemplateError>(())
    /// ```
    pub fn names(&self, name: &str) -> bool {
        self.program.name_numbers.contains_key(name)
    }

    /// Renders the template with the given variables.
    ///
    /// ```
    /// use nestling_template::{RenderOptions, Template, TemplateErrorKind};
    ///
    /// let template = Template::parse("{% if not messages %}{{ raise_exception('no messages') }}{% endif %}")?;
    /// let error = template.render(&serde_json::Map::new(), &RenderOptions::default()).err();
    /// let kind = error.map(|error| error.kind);
    /// assert_eq!(kind, Some(TemplateErrorKind::Refused("no messages".into())));
    /// # Ok::<(), nestling_template::TemplateError>(())
    /// ```
    pub fn render(
        &self,
        variables: &Map<String, Json>,
        options: &RenderOptions<'_>,
    ) -> Result<String, TemplateError> {
        let meter = Meter::new(options.limits, options.cancelled);
        let failed = |fault: Fault, line| TemplateError { line, kind: meter.explain(fault) };
        let machine = Machine::new(&self.program, &meter, options.strftime_now);
        let mut machine = machine.map_err(|fault| failed(fault, 0))?;
        let known = |name: &str| {
            let number = self.program.name_numbers.get(name)?;
            self.program.names.get(*number as usize).map(|name| Text::literal(&name.text))
        };
        for (name, json) in variables {
            // Variables that the template does not mention are skipped.
            let Some(number) = self.program.name_numbers.get(name.as_str()) else { continue };
            let value = from_json(&meter, json, &known).map_err(|fault| failed(fault, 0))?;
            machine.scopes.set_global(*number, value);
        }
        let result = machine.run();
        result.map_err(|fault| failed(fault, machine.line()))
    }
}
