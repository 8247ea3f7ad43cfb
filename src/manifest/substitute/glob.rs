//! The globs of the strip operators: `*` is any text (slashes included), `?` one character, `[a-z]` and `[^a-z]` one
//! character of a set, `\` takes the next character as it is.

use super::evaluate::{Budget, Problem};

/// Which of several matches counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    Shortest,
    Longest,
}

/// What one character of the text must be.
#[derive(Debug)]
enum Unit {
    Any,
    Char(char),
    Set { negated: bool, ranges: Vec<(char, char)> },
}

impl Unit {
    fn fits(&self, c: char) -> bool {
        match self {
            Self::Any => true,
            Self::Char(own) => *own == c,
            Self::Set { negated, ranges } => ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated,
        }
    }

    fn cost(&self) -> usize {
        match self {
            Self::Set { ranges, .. } => 1 + ranges.len(),
            _ => 1,
        }
    }
}

/// Units in a row, perhaps after a star.
#[derive(Debug)]
struct Chunk {
    starred: bool,
    units: Vec<Unit>,
}

impl Chunk {
    /// True when the chunk fits exactly at `at`.
    fn fits_at(&self, text: &[char], at: usize, budget: &mut Budget) -> Result<bool, Problem> {
        let Some(part) = text.get(at..at + self.units.len()) else {
            return Ok(false);
        };
        let mut cost = 1;
        let mut fits = true;
        for (unit, c) in self.units.iter().zip(part) {
            cost += unit.cost();
            if !unit.fits(*c) {
                fits = false;
                break;
            }
        }
        budget.charge(cost)?;
        Ok(fits)
    }
}

/// Characters of the prefix of `text` that `pattern` matches. Never 0: an empty match is none, and neither does a
/// malformed pattern match anything.
pub(super) fn prefix(
    pattern: &[char],
    text: &[char],
    reach: Reach,
    budget: &mut Budget,
) -> Result<Option<usize>, Problem> {
    budget.charge(pattern.len() + text.len())?;
    let Some(mut chunks) = compile(pattern) else {
        return Ok(None);
    };
    let Some(last) = chunks.pop() else {
        return Ok(None);
    };
    // Every chunk but the last is best taken where it first fits.
    let mut at = 0;
    for chunk in &chunks {
        let starts = at..=if chunk.starred { text.len() } else { at };
        match first_fit(chunk, text, starts, budget)? {
            Some(start) => at = start + chunk.units.len(),
            None => return Ok(None),
        }
    }
    if last.starred && last.units.is_empty() {
        let end = match reach {
            Reach::Shortest => at.max(1),
            Reach::Longest => text.len(),
        };
        return Ok((end > 0 && end <= text.len()).then_some(end));
    }
    let length = last.units.len();
    let start = if !last.starred {
        first_fit(&last, text, at..=at, budget)?
    } else if reach == Reach::Shortest {
        first_fit(&last, text, at..=text.len(), budget)?
    } else {
        first_fit(&last, text, (at..=text.len().saturating_sub(length)).rev(), budget)?
    };
    Ok(start.map(|start| start + length).filter(|end| *end > 0))
}

fn first_fit(
    chunk: &Chunk,
    text: &[char],
    starts: impl Iterator<Item = usize>,
    budget: &mut Budget,
) -> Result<Option<usize>, Problem> {
    for start in starts {
        if chunk.fits_at(text, start, budget)? {
            return Ok(Some(start));
        }
    }
    Ok(None)
}

/// The chunks of a pattern; `None` when it is malformed.
fn compile(pattern: &[char]) -> Option<Vec<Chunk>> {
    let mut chunks = Vec::new();
    let mut rest = pattern;
    while !rest.is_empty() {
        let stars = rest.iter().take_while(|c| **c == '*').count();
        rest = &rest[stars..];
        let (chunk, after) = rest.split_at(chunk_length(rest));
        rest = after;
        chunks.push(Chunk {
            starred: stars > 0,
            units: units(chunk)?,
        });
    }
    Some(chunks)
}

/// Characters up to the next star that is neither escaped nor in brackets.
fn chunk_length(pattern: &[char]) -> usize {
    let mut bracketed = false;
    let mut at = 0;
    while let Some(c) = pattern.get(at) {
        match c {
            '\\' => at += 1,
            '[' => bracketed = true,
            ']' => bracketed = false,
            '*' if !bracketed => break,
            _ => {}
        }
        at += 1;
    }
    at.min(pattern.len())
}

fn units(chunk: &[char]) -> Option<Vec<Unit>> {
    let mut units = Vec::with_capacity(chunk.len());
    let mut rest = chunk;
    while let Some((c, after)) = rest.split_first() {
        rest = after;
        units.push(match c {
            '?' => Unit::Any,
            '[' => set(&mut rest)?,
            '\\' => Unit::Char(take(&mut rest)?),
            c => Unit::Char(*c),
        });
    }
    Some(units)
}

/// A set, after its opening bracket.
fn set(rest: &mut &[char]) -> Option<Unit> {
    let negated = rest.first() == Some(&'^');
    if negated {
        take(rest)?;
    }
    let mut ranges = Vec::new();
    loop {
        if rest.first() == Some(&']') && !ranges.is_empty() {
            take(rest)?;
            return Some(Unit::Set { negated, ranges });
        }
        let low = member(rest)?;
        let high = if rest.first() == Some(&'-') {
            take(rest)?;
            member(rest)?
        } else {
            low
        };
        ranges.push((low, high));
    }
}

/// One end of a range; the closing bracket must still follow.
fn member(rest: &mut &[char]) -> Option<char> {
    let c = match take(rest)? {
        '-' | ']' => return None,
        '\\' => take(rest)?,
        c => c,
    };
    (!rest.is_empty()).then_some(c)
}

fn take(rest: &mut &[char]) -> Option<char> {
    let (c, after) = rest.split_first()?;
    *rest = after;
    Some(*c)
}
