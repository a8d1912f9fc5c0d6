//! The file that a service, a mount or an administrator has its token in.
//!
//! One rule for all of them: what one takes, the others take.

use glowfs_types::{Error, Result, Status};
use std::path::Path;

/// The longest token in bytes.
const TOKEN_BYTES_MAX: usize = 512;

/// Reads a token: one word on one line, and nothing else but white space around it.
pub fn read_token_file(path: &Path) -> Result<String> {
    let bad = |what: String| {
        Error::new(Status::InvalidArgument, format!("token file {}: {what}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_whitespace) {
        return Err(bad("does not hold a token (one word on one line)".into()));
    }
    if token.len() > TOKEN_BYTES_MAX {
        return Err(bad(format!("{} bytes; a token has at most {TOKEN_BYTES_MAX}", token.len())));
    }
    Ok(token.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_on_one_line() {
        let path = std::env::temp_dir().join(format!("glowfs-token-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).expect("temp file");
            read_token_file(&path)
        };
        assert_eq!(read(" abc\n\n").expect("a token"), "abc");
        for wrong in
            ["", "\n", "a b", "abc\n# the token of root\n", &"a".repeat(TOKEN_BYTES_MAX + 1)]
        {
            let e = read(wrong).expect_err("no token");
            assert!(e.message.contains("glowfs-token"), "{e}");
        }
        std::fs::remove_file(&path).expect("temp file");
        assert!(read_token_file(&path).expect_err("no file").message.contains("No such file"));
    }
}
