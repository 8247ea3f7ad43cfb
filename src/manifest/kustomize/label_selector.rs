//! The Kubernetes label selector grammar.

/// A selector that cannot be read.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("selector {selector:?}: {problem}")]
pub struct SelectorError {
    /// As written.
    pub selector: String,
    /// What is wrong.
    pub problem: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Operator {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    operator: Operator,
}

/// A parsed selector; an empty one matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector {
    requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// Reads a selector.
    pub fn parse(selector: &str) -> Result<Self, SelectorError> {
        let fail = |problem: String| SelectorError {
            selector: selector.to_owned(),
            problem,
        };
        let tokens = tokens(selector);
        let mut parser = Parser { tokens: &tokens, at: 0 };
        let mut requirements = Vec::new();
        if tokens.is_empty() {
            return Ok(Self::default());
        }
        loop {
            requirements.push(parser.requirement().map_err(fail)?);
            match parser.next() {
                None => return Ok(Self { requirements }),
                Some(",") if parser.peek().is_some() => {}
                Some(other) => return Err(fail(format!("unexpected {other:?}"))),
            }
        }
    }

    /// True when all requirements hold for these labels.
    pub fn matches(&self, labels: &[(&str, &str)]) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels
                .iter()
                .find(|(key, _)| *key == requirement.key)
                .map(|(_, value)| *value);
            let number = || value.and_then(|v| v.parse::<i64>().ok());
            match &requirement.operator {
                Operator::Exists => value.is_some(),
                Operator::Absent => value.is_none(),
                Operator::In(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
                Operator::NotIn(values) => value.is_none_or(|v| !values.iter().any(|x| x == v)),
                Operator::Greater(limit) => number().is_some_and(|n| n > *limit),
                Operator::Less(limit) => number().is_some_and(|n| n < *limit),
            }
        })
    }
}

fn tokens(text: &str) -> Vec<&str> {
    let special = |c: char| matches!(c, '(' | ')' | ',' | '=' | '!' | '<' | '>');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = if rest.starts_with("==") || rest.starts_with("!=") {
            2
        } else if special(first) {
            1
        } else {
            rest.find(|c: char| special(c) || c.is_whitespace())
                .unwrap_or(rest.len())
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    tokens
}

struct Parser<'t> {
    tokens: &'t [&'t str],
    at: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<&'t str> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'t str> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == Some("!");
        if absent {
            self.next();
        }
        let key = self.next().ok_or("a key is missing")?;
        check_key(key)?;
        let done = |operator| {
            Ok(Requirement {
                key: key.to_owned(),
                operator,
            })
        };
        if absent {
            return done(Operator::Absent);
        }
        match self.peek() {
            None | Some(",") => done(Operator::Exists),
            Some(sign @ ("=" | "==" | "!=")) => {
                self.next();
                let values = vec![self.value()?];
                done(if sign == "!=" {
                    Operator::NotIn(values)
                } else {
                    Operator::In(values)
                })
            }
            Some(word @ ("in" | "notin")) => {
                self.next();
                let values = self.values()?;
                done(if word == "in" {
                    Operator::In(values)
                } else {
                    Operator::NotIn(values)
                })
            }
            Some(sign @ ("<" | ">")) => {
                self.next();
                let limit = self
                    .value()?
                    .parse()
                    .map_err(|_| format!("{sign} needs a whole number"))?;
                done(if sign == ">" {
                    Operator::Greater(limit)
                } else {
                    Operator::Less(limit)
                })
            }
            Some(other) => Err(format!("unexpected {other:?} after {key:?}")),
        }
    }

    /// One value, empty when a comma or the end follows.
    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            None | Some(",") => Ok(String::new()),
            Some(text) => {
                self.next();
                check_value(text)?;
                Ok(text.to_owned())
            }
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        if self.next() != Some("(") {
            return Err("a list of values in parentheses is needed".to_owned());
        }
        let mut values = Vec::new();
        loop {
            match self.next() {
                Some(")") if values.is_empty() => return Ok(vec![String::new()]),
                Some(text @ ("," | ")")) => {
                    values.push(String::new());
                    if text == ")" {
                        return Ok(values);
                    }
                }
                Some(text) => {
                    check_value(text)?;
                    values.push(text.to_owned());
                    match self.next() {
                        Some(")") => return Ok(values),
                        Some(",") => {}
                        _ => return Err("a closing parenthesis is missing".to_owned()),
                    }
                }
                None => return Err("a closing parenthesis is missing".to_owned()),
            }
        }
    }
}

fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= 63
        && bytes.iter().all(|b| inner(*b))
        && bytes[0].is_ascii_alphanumeric()
        && bytes[bytes.len() - 1].is_ascii_alphanumeric()
}

fn check_key(key: &str) -> Result<(), String> {
    let name = match key.split_once('/') {
        Some((prefix, name)) if !prefix.is_empty() && prefix.len() <= 253 => name,
        Some(_) => return Err(format!("{key:?} is not a label key")),
        None => key,
    };
    if is_name(name) {
        Ok(())
    } else {
        Err(format!("{key:?} is not a label key"))
    }
}

fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_name(value) {
        Ok(())
    } else {
        Err(format!("{value:?} is not a label value"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_as_kubernetes_does() {
        let labels = [("app", "web"), ("tier", "front"), ("n", "5"), ("example.com/x", "")];
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app = web , tier != back", true),
            ("app!=web", false),
            ("missing!=x", true),
            ("app in (a, web)", true),
            ("app notin (a,web)", false),
            ("missing notin (a)", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("n>4,n<6", true),
            ("example.com/x=", true),
            ("example.com/x", true),
        ] {
            let parsed = LabelSelector::parse(selector).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(parsed.matches(&labels), expected, "{selector}");
        }
        for selector in [
            "app=",
            "app in",
            "app in (a",
            "=x",
            "a b",
            "app=web,",
            "a,,b",
            "-a",
            "n>x",
            "a=b c",
        ] {
            let fine = selector == "app=";
            assert_eq!(LabelSelector::parse(selector).is_ok(), fine, "{selector}");
        }
    }
}
