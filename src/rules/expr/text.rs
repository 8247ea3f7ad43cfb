//! Text for messages.

/// The text on one line, at most `limit` characters long.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    let mut words = text.split_whitespace();
    let mut line = words.next().unwrap_or_default().to_owned();
    for word in words {
        line.push(' ');
        line.push_str(word);
    }
    match line.char_indices().nth(limit) {
        Some((end, _)) => {
            line.truncate(end);
            line.push_str("...");
            line
        }
        None => line,
    }
}
