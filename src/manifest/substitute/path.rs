//! The place of a field, for messages.

use std::fmt;

/// Keys and indices from the object's root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Path(Vec<Segment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Key(String),
    Index(usize),
}

impl Path {
    pub(super) fn push_key(&mut self, key: &str) {
        self.0.push(Segment::Key(key.to_owned()));
    }

    pub(super) fn push_index(&mut self, index: usize) {
        self.0.push(Segment::Index(index));
    }

    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    pub(super) fn depth(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Index(at) => write!(f, "[{at}]")?,
                Segment::Key(key) if key.contains(|c: char| !c.is_ascii_alphanumeric() && !"-_".contains(c)) => {
                    write!(f, "[{key:?}]")?;
                }
                Segment::Key(key) if index == 0 => f.write_str(key)?,
                Segment::Key(key) => write!(f, ".{key}")?,
            }
        }
        Ok(())
    }
}
