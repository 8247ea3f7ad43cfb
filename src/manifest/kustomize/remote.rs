//! Which entries would have to be fetched.

/// True for URLs and the forms git takes for repositories.
pub(crate) fn is_remote(entry: &str) -> bool {
    let lower = entry.to_ascii_lowercase();
    if lower.starts_with("git::") {
        return true;
    }
    if ["http://", "https://", "ssh://", "file://", "git://"]
        .iter()
        .any(|scheme| lower.starts_with(scheme))
    {
        return true;
    }
    for host in ["github.com/", "github.com:"] {
        if let Some(rest) = lower.strip_prefix(host) {
            return rest.split('/').filter(|part| !part.is_empty()).count() >= 2;
        }
    }
    // user@host:path
    lower.split_once('@').is_some_and(|(user, rest)| {
        !user.is_empty()
            && user
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && rest
                .split_once(':')
                .is_some_and(|(host, path)| !host.is_empty() && !host.contains('/') && !path.is_empty())
    })
}

/// True for files that would have to be fetched over HTTP.
pub(crate) fn is_url(entry: &str) -> bool {
    let lower = entry.to_ascii_lowercase();
    lower.starts_with("http://") || lower.starts_with("https://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_remote_entries_from_paths() {
        for entry in [
            "https://example.com/x.yaml",
            "HTTPS://example.com/x",
            "git::https://x/y",
            "git@github.com:org/repo.git//path?ref=v1",
            "github.com/org/repo?ref=v1",
            "github.com:org/repo",
            "ssh://git@host/repo",
            "file:///x",
        ] {
            assert!(is_remote(entry), "{entry}");
        }
        for entry in ["../base", "base@2/x", "github.com/org", "a:b", "./http", "x@y"] {
            assert!(!is_remote(entry), "{entry}");
        }
    }
}
