//! Addresses as they may be shown.

/// `url` without what stands before the host: a name, a password or a token.
pub fn masked(url: &str) -> String {
    let Some((credentials, host)) = url.rsplit_once('@') else { return url.to_owned() };
    match credentials.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://***@{host}"),
        None => format!("***@{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn nothing_before_the_host_is_shown() {
        for (url, shown) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://me:secret@host:4222", "nats://***@host:4222"),
            ("tls://token@host", "tls://***@host"),
            ("me:sec@ret@host", "***@host"),
        ] {
            assert_eq!(masked(url), shown);
        }
    }
}
