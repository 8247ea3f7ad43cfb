//! Which notation Go's YAML libraries choose for a text.

use std::borrow::Cow;

use super::scalar::{self, Dialect, Resolved};
use super::{Loader, Mode};
use crate::manifest::node::{Node, Style, Tag};

/// The notation of a text in what is written from JSON.
pub(crate) fn style(text: &str) -> Style {
    if text.contains('\n') {
        return Style::Block;
    }
    if !is_text_when_plain(text) {
        return Style::Double;
    }
    let shape = Shape::of(text);
    match (shape.plain, shape.single) {
        (true, _) => Style::Plain,
        (false, true) => Style::Single,
        (false, false) => Style::Double,
    }
}

/// What a text has become once the reference has written it in its notation and read it again, as it does with every
/// object: a folded block gains a line break wherever a line that begins with a blank follows one that does not, and at
/// its end where it keeps more than one; when its first line begins with a blank, it loses breaks instead.
pub(crate) fn rewritten(text: &str, style: Style) -> Cow<'_, str> {
    // Kustomize's writer has nothing against tabs in a block.
    if style != Style::Folded || !text.contains('\n') || !Shape::of(&text.replace('\t', "-")).block {
        return Cow::Borrowed(text);
    }
    let blank = |line: &str| line.starts_with([' ', '\t']);
    let extra = usize::from(!blank(text.trim_start_matches('\n')));
    let body = text.trim_end_matches('\n');
    let mut out = String::with_capacity(text.len() + 8);
    let mut last: Option<&str> = None;
    let mut breaks = 0;
    for line in body.split('\n') {
        if !line.is_empty() {
            if let Some(last) = last {
                let written = if blank(last) { breaks } else { breaks + extra };
                match written {
                    _ if blank(last) || blank(line) => out.extend(std::iter::repeat_n('\n', written)),
                    1 => out.push(' '),
                    _ => out.extend(std::iter::repeat_n('\n', written - 1)),
                }
            } else {
                out.extend(std::iter::repeat_n('\n', breaks));
            }
            out.push_str(line);
            last = Some(line);
            breaks = 0;
        }
        breaks += 1;
    }
    let kept = match text.len() - body.len() {
        kept @ (0 | 1) => kept,
        more if last.is_some_and(|last| !blank(last)) => more + extra,
        more => more,
    };
    out.extend(std::iter::repeat_n('\n', kept));
    Cow::Owned(out)
}

/// True for a line that a YAML 1.1 reader takes for something else than text; a date and base-60 digits are text to it.
pub(crate) fn is_ambiguous(text: &str) -> bool {
    if text.is_empty() || text.contains('\n') {
        return false;
    }
    if Shape::of(text).plain {
        return !matches!(
            scalar::resolve(text, Dialect::Yaml11),
            Resolved::Str | Resolved::Timestamp
        );
    }
    match Loader::new(Mode::Kubectl).first(text, "", 1) {
        Ok(Some(node)) => !matches!(node, Node::Scalar(scalar) if matches!(scalar.tag, Tag::Str | Tag::Timestamp)),
        Ok(None) => true,
        Err(_) => false,
    }
}

/// False for text that readers of YAML 1.1 take for something else when it has no quotes.
pub(crate) fn is_text_when_plain(text: &str) -> bool {
    text != "<<"
        && scalar::resolve(text, Dialect::Yaml11) == Resolved::Str
        && scalar::rfc3339(text).is_none()
        && !is_sexagesimal(text)
}

/// `^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$`
fn is_sexagesimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let mut parts = whole.split(':');
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    let first = parts.next().unwrap_or_default();
    let mut more = 0;
    for part in parts {
        more += 1;
        if !matches!(part.as_bytes(), [b'0'..=b'9'] | [b'0'..=b'5', b'0'..=b'9']) {
            return false;
        }
    }
    more > 0 && first.starts_with(|c: char| c.is_ascii_digit()) && digits(first) && digits(fraction)
}

/// Which notations a text may have.
#[derive(Debug)]
pub(crate) struct Shape {
    pub plain: bool,
    pub single: bool,
    pub block: bool,
    pub breaks: bool,
}

impl Shape {
    pub fn of(text: &str) -> Self {
        let mut shape = Self {
            plain: !text.is_empty() && !text.starts_with("---") && !text.starts_with("..."),
            single: true,
            block: !text.is_empty() && !text.ends_with(' '),
            breaks: false,
        };
        let mut previous = '\n';
        let mut chars = text.chars().peekable();
        let mut first = true;
        while let Some(c) = chars.next() {
            let next_blank = chars.peek().is_none_or(|next| matches!(next, ' ' | '\t'));
            let indicator = match c {
                '#' if !first => is_blank_or_break(previous),
                '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => first,
                ':' => next_blank,
                '?' | '-' => first && next_blank,
                _ => false,
            };
            shape.plain &= !indicator;
            if !is_printable(c) || (is_break(c) && previous == ' ') {
                (shape.plain, shape.single, shape.block) = (false, false, false);
            }
            if c == ' ' && !first && is_break(previous) {
                (shape.plain, shape.single) = (false, false);
            }
            shape.breaks |= is_break(c);
            previous = c;
            first = false;
        }
        let edge = |c: char| c == ' ' || is_break(c);
        shape.plain &= !shape.breaks && !text.starts_with(edge) && !text.ends_with(edge);
        shape
    }
}

pub(crate) fn is_break(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn is_blank_or_break(c: char) -> bool {
    is_break(c) || matches!(c, ' ' | '\t')
}

pub(crate) fn is_printable(c: char) -> bool {
    matches!(c, '\n' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}') && c != '\u{feff}'
}
