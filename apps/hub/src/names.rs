//! Which names are safe in paths and addresses, whoever gives them.

/// Parts of the path of a repository's file.
pub const FOLDERS_MAX: usize = 4;

/// An owner, a repository, or a part of a revision.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() <= 96 && text.chars().all(plain) && !text.starts_with('.')
}

/// A path that stays inside its folder, whatever a server or a person says.
pub fn is_path(text: &str) -> bool {
    text.split('/').count() <= FOLDERS_MAX && text.split('/').all(is_file_name)
}

/// A name that stays inside its folder.
pub fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

/// Whether text is a commit.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hash(text)
}

/// Whether text is a hash in hexadecimal, of git or SHA-256, and so harmless as a file name.
pub fn is_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}
