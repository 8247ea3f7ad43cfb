//! Version constraints: alternatives (`||`) of terms that must all hold (actions 6.4).

use semver::{BuildMetadata, Version};

use super::{compare, parse_number};

/// Longest constraint text that is read.
const MAX_LENGTH: usize = 512;
/// Most alternatives in one constraint.
const MAX_ALTERNATIVES: usize = 32;

/// A text that is no constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    #[error("version constraint is empty; write for example >=1.0.0")]
    Empty,
    #[error("version constraint is longer than {MAX_LENGTH} bytes")]
    TooLong,
    #[error("version constraint has more than {MAX_ALTERNATIVES} alternatives")]
    TooManyAlternatives,
    #[error("version constraint {constraint:?} cannot be read at {at:?}: {cause}")]
    Syntax {
        constraint: String,
        at: String,
        cause: &'static str,
    },
}

/// A parsed constraint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constraint {
    alternatives: Vec<Vec<Term>>,
}

impl Constraint {
    /// Reads a constraint such as `>=1.2, <2 || ~3.1`.
    ///
    /// # Errors
    /// Where it cannot be read and why.
    pub fn parse(text: &str) -> Result<Self, ConstraintError> {
        if text.len() > MAX_LENGTH {
            return Err(ConstraintError::TooLong);
        }
        if text.trim().is_empty() {
            return Err(ConstraintError::Empty);
        }
        let alternatives: Vec<&str> = text.split("||").collect();
        if alternatives.len() > MAX_ALTERNATIVES {
            return Err(ConstraintError::TooManyAlternatives);
        }
        let alternatives = alternatives
            .into_iter()
            .map(|group| {
                parse_group(group).map_err(|(rest, cause)| ConstraintError::Syntax {
                    constraint: text.to_owned(),
                    at: rest.to_owned(),
                    cause,
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Constraint { alternatives })
    }

    /// True where one alternative holds. A pre-release is only considered by an alternative in which some term names a
    /// pre-release itself.
    pub fn matches(&self, version: &Version) -> bool {
        self.alternatives.iter().any(|terms| {
            let wants_pre = terms.iter().any(|term| !term.version.pre.is_empty());
            (version.pre.is_empty() || wants_pre) && terms.iter().all(|term| term.matches(version))
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
    Tilde,
    Caret,
}

/// Operators as written, longer ones before their prefixes; none is [`Operator::Equal`].
const OPERATORS: [(&str, Operator); 11] = [
    ("!=", Operator::NotEqual),
    (">=", Operator::GreaterOrEqual),
    ("=>", Operator::GreaterOrEqual),
    ("<=", Operator::LessOrEqual),
    ("=<", Operator::LessOrEqual),
    ("~>", Operator::Tilde),
    ("=", Operator::Equal),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("~", Operator::Tilde),
    ("^", Operator::Caret),
];

/// How many of a term's numbers were written; the rest were wildcards or left out and read as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Precision {
    Nothing,
    Major,
    Minor,
    Patch,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    operator: Operator,
    version: Version,
    precision: Precision,
}

impl Term {
    /// Whether a version satisfies the term by precedence, whatever pre-release it is.
    fn matches(&self, version: &Version) -> bool {
        let order = compare(version, &self.version);
        match self.operator {
            Operator::Equal if self.precision == Precision::Patch => order.is_eq(),
            Operator::Equal | Operator::Tilde => order.is_ge() && self.within_tilde(version),
            Operator::NotEqual => self.differs(version),
            Operator::Greater if self.is_range() => self.is_above_range(version),
            Operator::Greater => order.is_gt(),
            Operator::Less => order.is_lt(),
            Operator::GreaterOrEqual => order.is_ge(),
            Operator::LessOrEqual if self.precision == Precision::Patch => order.is_le(),
            Operator::LessOrEqual => self.is_within_or_below_range(version),
            Operator::Caret => order.is_ge() && self.within_caret(version),
        }
    }

    fn is_range(&self) -> bool {
        matches!(self.precision, Precision::Major | Precision::Minor)
    }

    fn same_major(&self, version: &Version) -> bool {
        version.major == self.version.major
    }

    fn same_minor(&self, version: &Version) -> bool {
        self.same_major(version) && version.minor == self.version.minor
    }

    /// A tilde keeps the minor, or the major where no minor is given. `~0.0.0` and a lone wildcard admit everything.
    fn within_tilde(&self, version: &Version) -> bool {
        let zero = (self.version.major, self.version.minor, self.version.patch) == (0, 0, 0);
        match self.precision {
            Precision::Nothing => true,
            Precision::Patch if zero => true,
            Precision::Major => self.same_major(version),
            Precision::Minor | Precision::Patch => self.same_minor(version),
        }
    }

    /// A caret keeps the leftmost number that is not zero.
    fn within_caret(&self, version: &Version) -> bool {
        if self.version.major > 0 || self.precision == Precision::Major {
            self.same_major(version)
        } else if self.version.minor > 0 || self.precision == Precision::Minor {
            self.same_minor(version)
        } else {
            self.same_minor(version) && version.patch == self.version.patch
        }
    }

    fn differs(&self, version: &Version) -> bool {
        match self.precision {
            Precision::Major => !self.same_major(version),
            // Within the range only the pre-release can tell the two apart.
            Precision::Minor => !self.same_minor(version) || version.pre != self.version.pre,
            Precision::Nothing | Precision::Patch => !compare(version, &self.version).is_eq(),
        }
    }

    fn is_above_range(&self, version: &Version) -> bool {
        version.major > self.version.major
            || (self.precision == Precision::Minor && self.same_major(version) && version.minor > self.version.minor)
    }

    fn is_within_or_below_range(&self, version: &Version) -> bool {
        let above_minor =
            self.precision != Precision::Major && self.same_major(version) && version.minor > self.version.minor;
        version.major <= self.version.major && !above_minor
    }
}

type Problem<'a> = (&'a str, &'static str);

/// Reads one alternative: terms separated by commas or blanks.
fn parse_group(group: &str) -> Result<Vec<Term>, Problem<'_>> {
    let mut terms = Vec::new();
    let mut rest = group.trim_start();
    loop {
        rest = parse_term(rest, &mut terms)?;
        let blanks = rest.trim_start();
        if blanks.is_empty() {
            return Ok(terms);
        }
        let next = blanks.strip_prefix(',').map(str::trim_start);
        match next {
            Some(next) => rest = next,
            None if blanks.len() < rest.len() => rest = blanks,
            None => return Err((rest, "a comma or a blank is expected")),
        }
    }
}

/// Reads one term, or the two of a hyphen range, and returns what follows.
fn parse_term<'a>(text: &'a str, terms: &mut Vec<Term>) -> Result<&'a str, Problem<'a>> {
    let written = OPERATORS.iter().find(|(sign, _)| text.starts_with(sign));
    let (version_text, operator) = match written {
        Some((sign, operator)) => (text[sign.len()..].trim_start(), *operator),
        None => (text, Operator::Equal),
    };
    let (mut term, rest) = parse_partial(version_text)?;
    term.operator = operator;
    let upper = rest.trim_start().strip_prefix('-').filter(|after| {
        written.is_none() && rest.starts_with(char::is_whitespace) && after.starts_with(char::is_whitespace)
    });
    let Some(upper) = upper else {
        terms.push(term);
        return Ok(rest);
    };
    let (mut last, rest) = parse_partial(upper.trim_start())?;
    term.operator = Operator::GreaterOrEqual;
    last.operator = Operator::LessOrEqual;
    terms.extend([term, last]);
    Ok(rest)
}

/// Reads a version of one to three parts, wildcards included, and returns what follows.
fn parse_partial(text: &str) -> Result<(Term, &str), Problem<'_>> {
    let bare = text.strip_prefix('v').unwrap_or(text);
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, 'x' | 'X' | '*' | '.');
    let (numbers, rest) = bare.split_at(bare.find(|c| !is_part(c)).unwrap_or(bare.len()));
    let is_suffix = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.');
    let suffix_end = match rest.starts_with(['-', '+']) {
        true => rest.find(|c| !is_suffix(c)).unwrap_or(rest.len()),
        false => 0,
    };
    let (suffix, rest) = rest.split_at(suffix_end);
    let mut core = [0_u64; 3];
    let mut written = 0;
    let mut open = false;
    for (index, part) in numbers.split('.').enumerate() {
        let wildcard = matches!(part, "x" | "X" | "*");
        open |= wildcard;
        match parse_number(part) {
            Some(number) if index < 3 && !open => core[index] = number,
            Some(_) if index < 3 => {}
            None if index < 3 && wildcard => {}
            _ => return Err((text, "a version of at most three parts is expected")),
        }
        written += usize::from(!open);
    }
    let [major, minor, patch] = core;
    let mut version = Version::parse(&format!("{major}.{minor}.{patch}{suffix}"))
        .map_err(|_| (text, "the pre-release or build part is malformed"))?;
    version.build = BuildMetadata::EMPTY;
    Ok((
        Term {
            operator: Operator::Equal,
            version,
            precision: match written {
                0 => Precision::Nothing,
                1 => Precision::Major,
                2 => Precision::Minor,
                _ => Precision::Patch,
            },
        },
        rest,
    ))
}
