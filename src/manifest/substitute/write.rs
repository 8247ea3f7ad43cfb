//! An object as YAML text, its expressions replaced.
//!
//! A value's type after substitution depends on how the text around it is written: whether `"${N}"` keeps its quotes,
//! and what a quote or backslash in a value does to the rest of the line. So scalars that hold a `$` are written as
//! the reference writes them (go-yaml v2: plain where possible, single quotes for indicators, literal blocks for
//! lines, long lines folded at 80 columns). All others are written in whichever way is sure to be read back.

use serde_json::Value;

use super::evaluate::{Problem, Scope};
use super::path::Path;
use crate::manifest::yaml::plain::{Shape, is_break, is_printable, is_text_when_plain};

/// Columns after which the reference folds a line at a space.
const WIDTH: usize = 80;
/// Longer keys are written after a question mark.
const SIMPLE_KEY: usize = 128;

/// A field whose expression is wrong.
pub(super) struct Fault {
    pub(super) path: Path,
    pub(super) problem: Problem,
}

/// True when any key or text in the value has a `$`: nothing else can change.
pub(super) fn has_dollar(value: &Value) -> bool {
    let mut todo = vec![value];
    while let Some(value) = todo.pop() {
        match value {
            Value::String(text) if text.contains('$') => return true,
            Value::Array(items) => todo.extend(items),
            Value::Object(map) => {
                if map.keys().any(|key| key.contains('$')) {
                    return true;
                }
                todo.extend(map.values());
            }
            _ => {}
        }
    }
    false
}

/// Writes an object with its expressions replaced.
pub(super) fn write(object: &Value, scope: &mut Scope<'_>) -> Result<String, Fault> {
    let mut writer = Writer::new(scope);
    writer.document(object)?;
    Ok(writer.out)
}

/// The last field with a `$` that begins at or before a line (from 1) of what [`write`] gives.
pub(super) fn field_at(object: &Value, scope: &mut Scope<'_>, line: usize) -> Option<Path> {
    let mut writer = Writer::new(scope);
    writer.wanted = Some(line);
    writer.document(object).ok()?;
    writer.found
}

struct Writer<'s, 'v> {
    out: String,
    path: Path,
    scope: &'s mut Scope<'v>,
    /// The line that is looked for, and what is known about it.
    wanted: Option<usize>,
    found: Option<Path>,
    newlines: usize,
    counted: usize,
}

impl<'s, 'v> Writer<'s, 'v> {
    fn new(scope: &'s mut Scope<'v>) -> Self {
        Self {
            out: String::new(),
            path: Path::default(),
            scope,
            wanted: None,
            found: None,
            newlines: 0,
            counted: 0,
        }
    }

    fn document(&mut self, object: &Value) -> Result<(), Fault> {
        match object {
            Value::Object(map) if !map.is_empty() => self.mapping(map, 0)?,
            Value::Array(items) if !items.is_empty() => self.sequence(items, 0)?,
            other => self.inline(other, 2, 0)?,
        }
        if !self.out.ends_with('\n') {
            self.out.push('\n');
        }
        Ok(())
    }

    /// Entries at an indent; the cursor is already there for the first one.
    fn mapping(&mut self, map: &serde_json::Map<String, Value>, indent: usize) -> Result<(), Fault> {
        if self.path.depth() > super::MAX_DEPTH {
            return Err(self.fault(Problem::TooDeep));
        }
        for (index, (key, value)) in map.iter().enumerate() {
            if index > 0 {
                self.indent(indent);
            }
            self.path.push_key(key);
            let column = self.key(key, indent)?;
            self.value(value, indent, column, false)?;
            self.path.pop();
        }
        Ok(())
    }

    /// Writes `key:` and gives the column after it, expressions not replaced.
    fn key(&mut self, key: &str, indent: usize) -> Result<usize, Fault> {
        if key.len() <= SIMPLE_KEY && !key.contains(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']) {
            let text = render(key, indent, indent, Place::Key);
            self.scalar(key, &text)?;
            self.out.push(':');
            return Ok(indent + text.chars().count() + 1);
        }
        self.out.push_str("? ");
        let text = render(key, indent + 2, indent + 2, Place::Value);
        self.scalar(key, &text)?;
        if !text.ends_with('\n') {
            self.out.push('\n');
        }
        self.out.extend(std::iter::repeat_n(' ', indent));
        self.out.push(':');
        Ok(indent + 1)
    }

    fn sequence(&mut self, items: &[Value], indent: usize) -> Result<(), Fault> {
        if self.path.depth() > super::MAX_DEPTH {
            return Err(self.fault(Problem::TooDeep));
        }
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.indent(indent);
            }
            self.path.push_index(index);
            self.out.push('-');
            self.value(item, indent, indent + 1, true)?;
            self.path.pop();
        }
        Ok(())
    }

    /// What stands after `key:` or `-`.
    fn value(&mut self, value: &Value, indent: usize, column: usize, in_sequence: bool) -> Result<(), Fault> {
        match value {
            Value::Object(map) if !map.is_empty() => {
                if in_sequence {
                    self.out.push(' ');
                } else {
                    self.indent(indent + 2);
                }
                self.mapping(map, indent + 2)
            }
            Value::Array(items) if !items.is_empty() => {
                if in_sequence {
                    self.out.push(' ');
                    return self.sequence(items, indent + 2);
                }
                self.indent(indent);
                self.sequence(items, indent)
            }
            other => {
                self.out.push(' ');
                self.inline(other, indent + 2, column + 1)
            }
        }
    }

    /// A scalar or an empty collection; the text that follows it begins on a new line.
    fn inline(&mut self, value: &Value, indent: usize, column: usize) -> Result<(), Fault> {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(flag) => self.out.push_str(if *flag { "true" } else { "false" }),
            Value::Number(number) => self.out.push_str(&number.to_string()),
            Value::Array(_) => self.out.push_str("[]"),
            Value::Object(_) => self.out.push_str("{}"),
            Value::String(text) if text.contains('$') => {
                let rendered = render(text, indent, column, Place::Value);
                self.scalar(text, &rendered)?;
            }
            Value::String(text) => double_quoted(text, None, &mut self.out),
        }
        Ok(())
    }

    fn scalar(&mut self, raw: &str, rendered: &str) -> Result<(), Fault> {
        if !raw.contains('$') {
            self.out.push_str(rendered);
            return Ok(());
        }
        self.look();
        match self.scope.evaluate(rendered) {
            Ok(text) if self.out.len() + text.len() > super::MAX_TEXT => Err(self.fault(Problem::TooLarge)),
            Ok(text) if is_plain(rendered) && is_dropped(&text) => Err(self.fault(Problem::Dropped)),
            Ok(text) => {
                self.out.push_str(&text);
                Ok(())
            }
            Err((_, problem)) => Err(self.fault(problem)),
        }
    }

    fn look(&mut self) {
        let Some(wanted) = self.wanted else {
            return;
        };
        self.newlines += self.out[self.counted..].bytes().filter(|b| *b == b'\n').count();
        self.counted = self.out.len();
        if self.newlines < wanted || self.found.is_none() {
            self.found = Some(self.path.clone());
        }
    }

    fn fault(&self, problem: Problem) -> Fault {
        Fault {
            path: self.path.clone(),
            problem,
        }
    }

    fn indent(&mut self, columns: usize) {
        if !self.out.ends_with('\n') {
            self.out.push('\n');
        }
        self.out.extend(std::iter::repeat_n(' ', columns));
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Key,
    Value,
}

/// How the reference writes a text. `indent` is that of continuation lines, `column` where the text begins.
fn render(text: &str, indent: usize, column: usize, place: Place) -> String {
    let shape = Shape::of(text);
    let fold = (place == Place::Value).then_some(Fold { indent, column });
    let mut out = String::with_capacity(text.len() + 2);
    if text.contains('\n') {
        if place == Place::Key || !shape.block {
            double_quoted(text, fold, &mut out);
        } else {
            literal(text, indent, &mut out);
        }
    } else if !is_text_when_plain(text) {
        double_quoted(text, fold, &mut out);
    } else if shape.plain {
        folded(text, false, fold, &mut out);
    } else if shape.single {
        out.push('\'');
        folded(text, true, fold, &mut out);
        out.push('\'');
    } else {
        double_quoted(text, fold, &mut out);
    }
    out
}

fn is_plain(rendered: &str) -> bool {
    !rendered.starts_with(['\'', '"', '|'])
}

/// True for plain text that would be read as nothing, or as what follows its first word.
fn is_dropped(text: &str) -> bool {
    let text = text.trim_start_matches([' ', '\t']);
    // No line follows that a block indicator could begin. A tag with two exclamation marks chooses a type.
    text.starts_with(['#', '&', '|', '>']) || (text.starts_with('!') && !text.starts_with("!!"))
}

/// Where lines are folded to.
#[derive(Debug, Clone, Copy)]
struct Fold {
    indent: usize,
    column: usize,
}

/// Decides at each space whether the line ends there.
struct Folder {
    fold: Option<Fold>,
    column: usize,
    /// Open braces of expressions: a fold inside one would become part of a pattern.
    open: usize,
    previous: char,
}

impl Folder {
    fn new(fold: Option<Fold>, quote: usize) -> Self {
        Self {
            fold,
            column: fold.map_or(0, |f| f.column) + quote,
            open: 0,
            previous: '\n',
        }
    }

    fn wrote(&mut self, c: char, columns: usize) {
        self.column += columns;
        match c {
            '{' if self.previous == '$' => self.open += 1,
            '}' => self.open = self.open.saturating_sub(1),
            _ => {}
        }
        // The second half of "$$" opens nothing.
        self.previous = if c == '$' && self.previous == '$' { ' ' } else { c };
    }

    /// True when the space that comes now is to be a line break, which is then written.
    fn breaks(&mut self, after_space: bool, out: &mut String) -> bool {
        let Some(fold) = self.fold else {
            return false;
        };
        if after_space || self.column <= WIDTH || self.open > 0 {
            return false;
        }
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', fold.indent));
        self.column = fold.indent;
        self.previous = ' ';
        true
    }
}

/// Plain text, or what stands between single quotes.
fn folded(text: &str, quoted: bool, fold: Option<Fold>, out: &mut String) {
    let mut folder = Folder::new(fold, usize::from(quoted));
    let mut after_space = false;
    let mut chars = text.chars().enumerate().peekable();
    while let Some((index, c)) = chars.next() {
        if c == ' ' {
            let next = chars.peek().map(|(_, next)| *next);
            let inner = !quoted || (index > 0 && next.is_some());
            if next == Some(' ') || !inner || !folder.breaks(after_space, out) {
                out.push(' ');
                folder.wrote(' ', 1);
            }
            after_space = true;
            continue;
        }
        after_space = false;
        if quoted && c == '\'' {
            out.push('\'');
            folder.column += 1;
        }
        out.push(c);
        folder.wrote(c, 1);
    }
}

fn double_quoted(text: &str, fold: Option<Fold>, out: &mut String) {
    let mut folder = Folder::new(fold, 1);
    let mut after_space = false;
    let mut chars = text.chars().enumerate().peekable();
    out.push('"');
    while let Some((index, c)) = chars.next() {
        if c == ' ' {
            let next = chars.peek().map(|(_, next)| *next);
            let inner = index > 0 && next.is_some();
            if inner && folder.breaks(after_space, out) {
                if next == Some(' ') {
                    out.push('\\');
                    folder.column += 1;
                }
            } else {
                out.push(' ');
                folder.wrote(' ', 1);
            }
            after_space = true;
            continue;
        }
        after_space = false;
        let before = out.len();
        escaped(c, out);
        folder.wrote(c, out[before..].chars().count());
    }
    out.push('"');
}

fn escaped(c: char, out: &mut String) {
    let short = match c {
        '"' => '"',
        '\\' => '\\',
        '\0' => '0',
        '\x07' => 'a',
        '\x08' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\x0b' => 'v',
        '\x0c' => 'f',
        '\r' => 'r',
        '\x1b' => 'e',
        '\u{85}' => 'N',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        c if is_printable(c) => return out.push(c),
        c => {
            let code = u32::from(c);
            out.push_str(&match code {
                0..=0xff => format!("\\x{code:02X}"),
                0x100..=0xffff => format!("\\u{code:04X}"),
                _ => format!("\\U{code:08X}"),
            });
            return;
        }
    };
    out.push('\\');
    out.push(short);
}

/// A literal block; its first line is the rest of the current one.
fn literal(text: &str, indent: usize, out: &mut String) {
    out.push('|');
    if text.starts_with(|c| c == ' ' || is_break(c)) {
        out.push('2');
    }
    let mut from_end = text.chars().rev().map(is_break);
    match (from_end.next(), from_end.next()) {
        (Some(true), Some(true) | None) => out.push('+'),
        (Some(true), Some(false)) => {}
        _ => out.push('-'),
    }
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', indent));
            out.push_str(line);
        }
    }
    if text.ends_with('\n') {
        out.push('\n');
    }
}
