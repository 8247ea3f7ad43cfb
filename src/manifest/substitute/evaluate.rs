//! One text: finds the expressions, evaluates them as it goes. Parsing and evaluating are one pass, since the dialect
//! evaluates every argument anyway.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use regex::Regex;

use super::glob::{self, Reach};
use super::{MAX_DEPTH, MAX_TEXT};

/// What is wrong with an expression. Never holds a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// No name after `${`.
    #[error(
        "\"${{\" is not followed by a variable name; write \"$${{\" where \"${{\" is meant, or annotate the object with kustomize.toolkit.fluxcd.io/substitute: disabled"
    )]
    NoName,
    /// Something after the name that is no operator.
    #[error(
        "${{{name}...}}: {found:?} is no operator (there are = := :- := :? :+ ^ ^^ , ,, # ## % %% / // /# /% and :N:M); write \"$${{\" where \"${{\" is meant"
    )]
    Operator {
        /// The variable.
        name: String,
        /// The character found.
        found: char,
    },
    /// The text ends before the expression.
    #[error("${{{name}...}} is not closed before the end of the text; add the missing \"}}\", or write \"$${{\"")]
    Unclosed {
        /// The variable, as far as known.
        name: String,
    },
    /// Text where an operator allows none.
    #[error("${{{name}...}}: the {part} is empty or not followed by what must follow; {hint}")]
    Argument {
        /// The variable.
        name: String,
        /// Which argument.
        part: &'static str,
        /// How it is written.
        hint: &'static str,
    },
    /// A substring from the middle of a character.
    #[error("${{{name}:...}}: offset or length fall inside a character; they count bytes, move them to its edge")]
    Cut {
        /// The variable.
        name: String,
    },
    /// Offset and length beyond any text.
    #[error("${{{name}:...}}: offset plus length is past 2^63; use a smaller length")]
    Range {
        /// The variable.
        name: String,
    },
    /// Text that YAML would drop.
    #[error(
        "once the variables' values are in it, the text begins with one of # & ! | >, for which YAML drops all of it or its first word; {}",
        super::QUOTING_HINT
    )]
    Dropped,
    /// Expressions inside expressions inside ...
    #[error("expressions are nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// The result is too large.
    #[error("the text grows past {MAX_TEXT} bytes; no cluster takes such an object")]
    TooLarge,
    /// All results together are too large.
    #[error(
        "the variables add more than {} bytes to the objects; shorten their values",
        super::MAX_GROWTH
    )]
    TooMuchGrowth,
    /// Patterns and values whose combination costs too much.
    #[error("substitution takes too many steps; use shorter values or simpler patterns")]
    TooExpensive,
}

/// Steps that are left; a step is about a byte or a character looked at.
#[derive(Debug)]
pub(super) struct Budget(usize);

impl Budget {
    pub(super) fn new(steps: usize) -> Self {
        Self(steps)
    }

    pub(super) fn charge(&mut self, steps: usize) -> Result<(), Problem> {
        self.0 = self.0.checked_sub(steps).ok_or(Problem::TooExpensive)?;
        Ok(())
    }
}

/// What texts are evaluated with; shared by all texts of one object.
pub(super) struct Scope<'v> {
    pub(super) vars: &'v BTreeMap<String, String>,
    pub(super) strict: bool,
    /// Undefined variables that strict mode found.
    pub(super) missing: BTreeSet<String>,
    pub(super) budget: Budget,
    /// Bytes that results are longer than their texts.
    growth: usize,
}

impl<'v> Scope<'v> {
    pub(super) fn new(vars: &'v BTreeMap<String, String>, strict: bool, budget: Budget) -> Self {
        Self {
            vars,
            strict,
            missing: BTreeSet::new(),
            budget,
            growth: 0,
        }
    }

    /// Bytes that results were longer than their texts since this was last asked.
    pub(super) fn take_growth(&mut self) -> usize {
        std::mem::take(&mut self.growth)
    }

    /// The text with its expressions replaced.
    ///
    /// # Errors
    /// The problem and the byte at which the outermost expression that has it begins.
    pub(super) fn evaluate(&mut self, text: &str) -> Result<String, (usize, Problem)> {
        let mut cursor = Cursor { text, at: 0 };
        let mut out = String::with_capacity(text.len());
        loop {
            let literal = cursor.literal(|_| false, Escapes::Dollar);
            let start = cursor.at;
            self.append(&mut out, &literal).map_err(|problem| (start, problem))?;
            if !cursor.eat("${") {
                self.growth += out.len().saturating_sub(text.len());
                return Ok(out);
            }
            self.expression(&mut cursor, 1)
                .and_then(|value| self.append(&mut out, &value))
                .map_err(|problem| (start, problem))?;
        }
    }

    fn append(&mut self, out: &mut String, text: &str) -> Result<(), Problem> {
        self.budget.charge(text.len())?;
        if out.len() + text.len() > MAX_TEXT {
            return Err(Problem::TooLarge);
        }
        out.push_str(text);
        Ok(())
    }

    /// The value of an expression whose `${` is behind the cursor.
    fn expression(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<Cow<'v, str>, Problem> {
        if depth > MAX_DEPTH {
            return Err(Problem::TooDeep);
        }
        self.budget.charge(1)?;
        if cursor.eat("#") {
            let name = cursor.name()?;
            cursor.close(name)?;
            return Ok(Cow::Owned(self.required(name).len().to_string()));
        }
        let name = cursor.name()?;
        match cursor.peek() {
            Some('}') => {
                cursor.close(name)?;
                Ok(Cow::Borrowed(self.required(name)))
            }
            Some('=') => self.default(cursor, name, depth, 1),
            Some(':') => match cursor.text[cursor.at + 1..].chars().next() {
                Some('=' | '-' | '?' | '+') => self.default(cursor, name, depth, 2),
                _ => self.substring(cursor, name, depth),
            },
            Some(',' | '^') => self.case(cursor, name),
            Some('/') => self.replace(cursor, name, depth),
            Some('#') => self.strip(cursor, name, depth, '#'),
            Some('%') => self.strip(cursor, name, depth, '%'),
            Some(found) => Err(Problem::Operator {
                name: name.to_owned(),
                found,
            }),
            None => Err(unclosed(name)),
        }
    }

    /// The value for an operator that needs the variable.
    fn required(&mut self, name: &str) -> &'v str {
        let value = self.vars.get(name);
        if value.is_none() && self.strict && !self.missing.contains(name) {
            self.missing.insert(name.to_owned());
        }
        value.map_or("", String::as_str)
    }

    /// `${x=d}` and its like; all mean the same.
    fn default(
        &mut self,
        cursor: &mut Cursor<'_>,
        name: &str,
        depth: usize,
        operator: usize,
    ) -> Result<Cow<'v, str>, Problem> {
        cursor.at += operator;
        let mut default = String::new();
        while !cursor.eat("}") {
            if cursor.eat("${") {
                let value = self.expression(cursor, depth + 1)?;
                self.append(&mut default, &value)?;
                continue;
            }
            let literal = cursor.literal(|c| c == '}', Escapes::None);
            if literal.is_empty() {
                return Err(unclosed(name));
            }
            self.append(&mut default, &literal)?;
        }
        let value = self.vars.get(name).map_or("", String::as_str);
        Ok(if value.is_empty() {
            Cow::Owned(default)
        } else {
            Cow::Borrowed(value)
        })
    }

    /// One argument: a nested expression or literal text that is not empty.
    fn argument<'t>(
        &mut self,
        cursor: &mut Cursor<'t>,
        depth: usize,
        stop: impl Fn(char) -> bool,
        escapes: Escapes,
    ) -> Result<Option<Cow<'t, str>>, Problem> {
        if cursor.eat("${") {
            let value = self.expression(cursor, depth + 1)?;
            self.budget.charge(value.len())?;
            return Ok(Some(Cow::Owned(value.into_owned())));
        }
        let start = cursor.at;
        let literal = cursor.literal(stop, escapes);
        Ok((cursor.at > start).then_some(literal))
    }

    /// `${x:p}` and `${x:p:n}`, after the name.
    fn substring(&mut self, cursor: &mut Cursor<'_>, name: &str, depth: usize) -> Result<Cow<'v, str>, Problem> {
        let malformed = || Problem::Argument {
            name: name.to_owned(),
            part: "offset or length",
            hint: "a substring is written ${x:OFFSET} or ${x:OFFSET:LENGTH}",
        };
        cursor.at += 1;
        // The reference refuses these too.
        if cursor.peek().is_some_and(|c| !c.is_ascii()) {
            return Err(malformed());
        }
        let offset = self
            .argument(cursor, depth, |c| c == ':' || c == '}', Escapes::None)?
            .ok_or_else(malformed)?;
        let mut length = None;
        if cursor.peek() == Some(':') {
            while cursor.eat(":") {}
            length = self.argument(cursor, depth, |c| c == '}', Escapes::None)?;
            if length.is_none() {
                return Err(malformed());
            }
        }
        cursor.close(name)?;
        let value = self.required(name);
        cut(value, name, &offset, length.as_deref()).map(Cow::Borrowed)
    }

    /// `${x^}`, `${x^^}`, `${x,}`, `${x,,}`, after the name. Two that differ mean nothing.
    fn case(&mut self, cursor: &mut Cursor<'_>, name: &str) -> Result<Cow<'v, str>, Problem> {
        let is_case = |c: &char| matches!(c, ',' | '^');
        let first = cursor.next_if(is_case);
        let second = cursor.next_if(is_case);
        cursor.close(name)?;
        let value = self.required(name);
        self.budget.charge(value.len())?;
        let convert = if first == Some('^') { upper } else { lower };
        if second.is_none() {
            let mut chars = value.chars();
            return Ok(chars.next().map_or(Cow::Borrowed(value), |c| {
                Cow::Owned(format!("{}{}", convert(c), chars.as_str()))
            }));
        }
        if first != second {
            return Ok(Cow::Borrowed(value));
        }
        Ok(Cow::Owned(value.chars().map(convert).collect()))
    }

    /// `${x/a/b}` and its like, after the name.
    fn replace(&mut self, cursor: &mut Cursor<'_>, name: &str, depth: usize) -> Result<Cow<'v, str>, Problem> {
        let malformed = || Problem::Argument {
            name: name.to_owned(),
            part: "pattern or replacement",
            hint: "a replacement is written ${x/PATTERN/TEXT}, with \\/ for a slash",
        };
        cursor.at += 1;
        let operator = cursor.next_if(|c| matches!(c, '/' | '#' | '%'));
        let pattern = self
            .argument(cursor, depth, |c| c == '/', Escapes::DollarAndSlash)?
            .ok_or_else(malformed)?;
        if cursor.peek() != Some('/') {
            return Err(malformed());
        }
        while cursor.eat("/") {}
        let mut text = None;
        if cursor.peek() != Some('}') {
            text = self.argument(cursor, depth, |c| c == '}', Escapes::DollarAndSlash)?;
            if text.is_none() {
                return Err(unclosed(name));
            }
        }
        cursor.close(name)?;
        let value = self.required(name);
        self.budget.charge(value.len() + pattern.len())?;
        self.replaced(value, operator, &pattern, text.as_deref())
    }

    fn replaced(
        &mut self,
        value: &'v str,
        operator: Option<char>,
        pattern: &str,
        text: Option<&str>,
    ) -> Result<Cow<'v, str>, Problem> {
        // An anchored replacement without text does nothing, other than in bash.
        let wanted = match (operator, text) {
            (Some('#'), Some(_)) => usize::from(value.starts_with(pattern)),
            (Some('%'), Some(text)) => {
                let Some(stem) = value.strip_suffix(pattern) else {
                    return Ok(Cow::Borrowed(value));
                };
                let mut out = String::new();
                self.append(&mut out, stem)?;
                self.append(&mut out, text)?;
                return Ok(Cow::Owned(out));
            }
            (Some('#' | '%'), None) => 0,
            (Some(_), _) => usize::MAX,
            (None, _) => 1,
        };
        let text = text.unwrap_or_default();
        let mut out = String::new();
        let mut done = 0;
        for (at, found) in value.match_indices(pattern).take(wanted) {
            self.append(&mut out, &value[done..at])?;
            self.append(&mut out, text)?;
            done = at + found.len();
        }
        self.append(&mut out, &value[done..])?;
        Ok(Cow::Owned(out))
    }

    /// `${x#g}`, `${x##g}`, `${x%g}`, `${x%%g}`, after the name.
    fn strip(
        &mut self,
        cursor: &mut Cursor<'_>,
        name: &str,
        depth: usize,
        side: char,
    ) -> Result<Cow<'v, str>, Problem> {
        cursor.at += 1;
        let reach = match cursor.next_if(|c| *c == side) {
            Some(_) => Reach::Longest,
            None => Reach::Shortest,
        };
        let pattern = self
            .argument(cursor, depth, |c| c == '}', Escapes::None)?
            .ok_or_else(|| Problem::Argument {
                name: name.to_owned(),
                part: "pattern",
                hint: "stripping is written ${x#PATTERN} or ${x%PATTERN}",
            })?;
        cursor.close(name)?;
        let value = self.required(name);
        self.budget.charge(value.len() + pattern.len())?;
        let mut text: Vec<char> = value.chars().collect();
        let mut glob: Vec<char> = pattern.chars().collect();
        if side == '%' {
            // Value and pattern are turned round, so sets and escapes mean nothing here.
            text.reverse();
            glob.reverse();
        }
        let Some(matched) = glob::prefix(&glob, &text, reach, &mut self.budget)? else {
            return Ok(Cow::Borrowed(value));
        };
        let bytes: usize = text[..matched].iter().map(|c| c.len_utf8()).sum();
        Ok(Cow::Borrowed(if side == '%' {
            &value[..value.len() - bytes]
        } else {
            &value[bytes..]
        }))
    }
}

/// The part of a value at a byte offset; all of it when the offset or length is no number.
fn cut<'v>(value: &'v str, name: &str, offset: &str, length: Option<&str>) -> Result<&'v str, Problem> {
    let size = i64::try_from(value.len()).unwrap_or(i64::MAX);
    let Ok(offset) = offset.parse::<i64>() else {
        return Ok(value);
    };
    let start = if offset < 0 {
        size.saturating_add(offset).max(0)
    } else {
        offset
    };
    let end = match length.map(str::parse::<i64>) {
        None => size,
        Some(Err(_)) => return Ok(value),
        // Counts back from the end, as in bash.
        Some(Ok(length)) if length < 0 => size.saturating_add(length),
        Some(Ok(length)) => start
            .checked_add(length)
            .ok_or_else(|| Problem::Range { name: name.to_owned() })?
            .min(size),
    };
    if start >= end {
        return Ok("");
    }
    let range = usize::try_from(start).unwrap_or(usize::MAX)..usize::try_from(end).unwrap_or(0);
    value.get(range).ok_or_else(|| Problem::Cut { name: name.to_owned() })
}

/// Upper case of one character, itself one character as in Go.
fn upper(c: char) -> char {
    let mut all = c.to_uppercase();
    match (all.next(), all.next()) {
        (Some(only), None) => only,
        // Small Greek letters with iota subscript: Unicode's simple mapping is a neighbour.
        _ => match c {
            '\u{1f80}'..='\u{1f87}' | '\u{1f90}'..='\u{1f97}' | '\u{1fa0}'..='\u{1fa7}' => {
                char::from_u32(u32::from(c) + 8).unwrap_or(c)
            }
            '\u{1fb3}' | '\u{1fc3}' | '\u{1ff3}' => char::from_u32(u32::from(c) + 9).unwrap_or(c),
            _ => c,
        },
    }
}

/// Lower case of one character, itself one character as in Go.
fn lower(c: char) -> char {
    // Of what has a longer full mapping (the dotted capital I alone), this is the simple one.
    c.to_lowercase().next().unwrap_or(c)
}

fn unclosed(name: &str) -> Problem {
    Problem::Unclosed { name: name.to_owned() }
}

fn is_name_char(c: char) -> bool {
    static LETTER_OR_DIGIT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"^[\p{L}\p{Nd}]$").ok());
    if c.is_ascii() {
        return c.is_ascii_alphanumeric() || c == '_';
    }
    let mut buffer = [0; 4];
    LETTER_OR_DIGIT
        .as_ref()
        .is_some_and(|regex| regex.is_match(c.encode_utf8(&mut buffer)))
}

/// Which pairs of characters stand for their second one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escapes {
    None,
    /// `$$`
    Dollar,
    /// `$$`, `\/` and `\\`
    DollarAndSlash,
}

impl Escapes {
    fn is_pair(self, first: u8, second: u8) -> bool {
        match first {
            b'$' => self != Self::None && second == b'$',
            b'\\' => self == Self::DollarAndSlash && matches!(second, b'/' | b'\\'),
            _ => false,
        }
    }
}

struct Cursor<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Cursor<'t> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next_if(&mut self, wanted: impl Fn(&char) -> bool) -> Option<char> {
        let c = self.peek().filter(wanted)?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn name(&mut self) -> Result<&'t str, Problem> {
        let rest = &self.text[self.at..];
        let length = rest.find(|c| !is_name_char(c)).unwrap_or(rest.len());
        if length == 0 {
            return Err(Problem::NoName);
        }
        self.at += length;
        Ok(&rest[..length])
    }

    fn close(&mut self, name: &str) -> Result<(), Problem> {
        match self.peek() {
            Some('}') => {
                self.at += 1;
                Ok(())
            }
            Some('$') => Err(Problem::Argument {
                name: name.to_owned(),
                part: "argument",
                hint: "it is either plain text or one nested expression, not both",
            }),
            Some(found) => Err(Problem::Operator {
                name: name.to_owned(),
                found,
            }),
            None => Err(unclosed(name)),
        }
    }

    /// Text up to the next expression or a stop character, which is not taken.
    fn literal(&mut self, stop: impl Fn(char) -> bool, escapes: Escapes) -> Cow<'t, str> {
        let bytes = self.text.as_bytes();
        let mut unescaped: Option<String> = None;
        let mut from = self.at;
        while let Some(c) = self.peek() {
            let second = bytes.get(self.at + 1).copied();
            if c == '$' && second == Some(b'{') {
                break;
            }
            if let Some(second) = second
                && escapes.is_pair(bytes[self.at], second)
            {
                let text = unescaped.get_or_insert_default();
                text.push_str(&self.text[from..self.at]);
                from = self.at + 1;
                self.at += 2;
                continue;
            }
            if stop(c) {
                break;
            }
            self.at += c.len_utf8();
        }
        let rest = &self.text[from..self.at];
        match unescaped {
            Some(mut text) => {
                text.push_str(rest);
                Cow::Owned(text)
            }
            None => Cow::Borrowed(rest),
        }
    }
}
