//! Query parameters of a request.

use axum::http::Uri;

use crate::error::ApiError;

/// Query parameters that are taken one by one.
#[derive(Debug)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    /// # Errors
    /// Returns an error if a percent-escape is malformed or is not UTF-8.
    pub fn parse(uri: &Uri) -> Result<Self, ApiError> {
        // Default: no query is an empty one.
        let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| {
            // Default: a parameter without `=` has an empty value.
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let wrong = || ApiError::invalid(name, "a malformed percent-escape");
            let name = unescaped_text(name).ok_or_else(wrong)?;
            Ok((name, unescaped_text(value).ok_or_else(wrong)?))
        });
        Ok(Self { pairs: pairs.collect::<Result<_, ApiError>>()? })
    }

    /// Takes all values of a parameter.
    fn all(&mut self, name: &str) -> Vec<String> {
        let pairs = std::mem::take(&mut self.pairs).into_iter();
        let (taken, left) = pairs.partition::<Vec<_>, _>(|(found, _)| found == name);
        self.pairs = left;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    /// Takes a parameter.
    ///
    /// # Errors
    /// Returns an error if it is there twice.
    pub fn one(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let mut values = self.all(name);
        if values.len() > 1 {
            return Err(ApiError::invalid(name, format!("`{name}` is there twice")));
        }
        Ok(values.pop())
    }

    /// Finishes the query after all its known parameters were taken.
    ///
    /// # Errors
    /// Returns an error for the first other parameter.
    pub fn end(self) -> Result<(), ApiError> {
        self.pairs.first().map_or(Ok(()), |(name, _)| Err(ApiError::unknown(name)))
    }
}

fn unescaped_text(text: &str) -> Option<String> {
    String::from_utf8(unescaped(&text.replace('+', " "))?).ok()
}

/// Decodes percent-escapes. Returns `None` if one is malformed.
pub(crate) fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let byte = match first {
            b'%' => {
                let (digits, after) = after.split_at_checked(2)?;
                rest = after;
                u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?
            }
            byte => *byte,
        };
        bytes.push(byte);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Query, ApiError> {
        Query::parse(&format!("/x?{query}").parse().unwrap())
    }

    #[test]
    fn parameters_are_decoded_and_taken_once() {
        let mut query = parse("a=1&b=x%20y+z&c&a=2&&%61=3").unwrap();
        assert_eq!(query.one("b").unwrap().unwrap(), "x y z");
        assert_eq!(query.one("c").unwrap().unwrap(), "");
        assert_eq!(query.all("a"), ["1", "2", "3"]);
        assert_eq!(query.one("a").unwrap(), None);
        query.end().unwrap();
    }

    #[test]
    fn malformed_and_unknown_parameters_are_refused() {
        for wrong in ["a=%", "a=%2", "a=%zz", "a=%ff", "%ff=1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("a=1&a=2").unwrap().one("a").is_err());
        assert_eq!(parse("a=1").unwrap().end().unwrap_err().param.as_deref(), Some("a"));
        parse("").unwrap().end().unwrap();
    }
}
