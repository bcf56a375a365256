//! Who may ask over TCP: whoever has the token, by a name that no page of the Web can have the browser use.

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use subtle::ConstantTimeEq as _;

use super::fault::{Fault, Refused};

/// What whoever asks over TCP has to know.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// The first line of the file `path`.
    ///
    /// # Errors
    /// When it can't be read, others than its owner and group may read it, or it is too short to keep anybody out.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let wrong = |error| TokenError::Read {
            path: path.into(),
            error,
        };
        let mode = std::fs::metadata(path).map_err(wrong)?.mode();
        if mode & 0o007 != 0 {
            return Err(TokenError::Open { path: path.into() });
        }
        let text = std::fs::read_to_string(path).map_err(wrong)?;
        let line = text.lines().next().unwrap_or_default().trim();
        let plain = |c: char| c.is_ascii_graphic();
        if line.len() < SHORTEST || !line.chars().all(plain) {
            return Err(TokenError::Weak { path: path.into() });
        }
        Ok(Self(line.into()))
    }

    /// Compares in a time that says nothing of how much was right.
    fn is(&self, other: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(other).into()
    }
}

/// It stays out of logs.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// A request that has come over TCP.
#[derive(Clone, Copy)]
pub(super) struct OverTcp;

/// Lets a request through that may come over TCP.
pub(super) async fn pass(State(token): State<Token>, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(OverTcp);
    match judge(request.headers(), &token) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

fn judge(headers: &HeaderMap, token: &Token) -> Result<(), Refused> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    if !host.is_some_and(is_own_name) {
        return Err(Refused::new(
            StatusCode::FORBIDDEN,
            Fault::new(
                "header `Host`",
                "the request is for another host; address FlexCP by an IP address, or by localhost",
            ),
        ));
    }
    let given = headers
        .get(header::AUTHORIZATION)
        .map(|value| value.as_bytes());
    let given = given.and_then(|value| {
        let (scheme, token) = value.split_at_checked(BEARER.len())?;
        scheme.eq_ignore_ascii_case(BEARER).then_some(token)
    });
    if !given.is_some_and(|given| token.is(given)) {
        return Err(Refused::new(
            StatusCode::UNAUTHORIZED,
            Fault::new(
                "header `Authorization`",
                "the token is missing or wrong; send `Authorization: Bearer` with the one of `token_file` in [control]",
            ),
        ));
    }
    Ok(())
}

/// A name that is looked up may be made to lead here by whoever owns it: a page of the Web could ask as if it came from
/// here. Addresses and localhost are not looked up.
fn is_own_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|digit| digit.is_ascii_digit()) && !name.ends_with(':') =>
        {
            name
        }
        _ => host,
    };
    let literal = name
        .strip_prefix('[')
        .map_or(name, |name| name.strip_suffix(']').unwrap_or(name));
    name.eq_ignore_ascii_case("localhost") || literal.parse::<IpAddr>().is_ok()
}

/// The token can't be used.
#[derive(thiserror::Error, Debug)]
pub enum TokenError {
    /// Anybody may read it.
    #[error("everybody may read the token file {path}; chmod o= {path}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
    },
    /// It can't be read.
    #[error("can't read the token file {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        error: io::Error,
    },
    /// It is soon guessed, or can't be sent.
    #[error(
        "the token file {path} has no token in its first line; write {SHORTEST} letters and digits at least, like those \
         of: openssl rand -hex 32", path = path.display()
    )]
    Weak {
        /// The file.
        path: PathBuf,
    },
}

/// Characters of a token, at least.
const SHORTEST: usize = 16;

const BEARER: &[u8] = b"Bearer ";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn names_that_are_looked_up_are_not_ours() {
        for own in [
            "127.0.0.1",
            "127.0.0.1:7301",
            "192.0.2.1:80",
            "[::1]:7301",
            "[2001:db8::1]",
            "localhost",
            "LOCALHOST:7301",
        ] {
            assert!(is_own_name(own), "{own}");
        }
        for other in [
            "",
            "example.com",
            "example.com:7301",
            "127.0.0.1.example.com",
            "localhost.example.com",
            ":7301",
            "localhost:x",
        ] {
            assert!(!is_own_name(other), "{other}");
        }
    }

    fn headers(host: &'static str, authorization: Option<&'static str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(value) = authorization {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_the_token_opens() {
        let token = Token("0123456789abcdef".into());
        let judged = |host, authorization| {
            let judged = judge(&headers(host, authorization), &token);
            judged.map_err(|refused| refused.into_response().status().as_u16())
        };
        assert_eq!(judged("127.0.0.1", Some("Bearer 0123456789abcdef")), Ok(()));
        assert_eq!(judged("127.0.0.1", Some("bearer 0123456789abcdef")), Ok(()));
        for wrong in [
            None,
            Some(""),
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer 0123456789abcdeg"),
            Some("Bearer 0123456789abcde"),
            Some("Bearer 0123456789abcdef0"),
            Some("Basic 0123456789abcdef"),
        ] {
            assert_eq!(judged("127.0.0.1", wrong), Err(401), "{wrong:?}");
        }
        // Whoever is asked by a foreign name does not even say whether the token is right.
        assert_eq!(
            judged("evil.example", Some("Bearer 0123456789abcdef")),
            Err(403)
        );
        assert_eq!(
            judge(&HeaderMap::new(), &token).map_err(|r| r.into_response().status()),
            Err(StatusCode::FORBIDDEN)
        );
    }

    #[test]
    fn token_is_a_secret_in_a_file_of_its_own() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("token");
        let said = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = Token::read(&path).map(|token| token.0.to_string());
            read.map_err(|error| {
                error
                    .to_string()
                    .replace(&path.display().to_string(), "PATH")
            })
        };
        assert_eq!(
            said("0123456789abcdef\n", 0o600),
            Ok("0123456789abcdef".into())
        );
        assert_eq!(
            said("0123456789abcdef\nmore\n", 0o640),
            Ok("0123456789abcdef".into())
        );
        assert_eq!(
            said("0123456789abcdef\n", 0o644),
            Err("everybody may read the token file PATH; chmod o= PATH".into())
        );
        for weak in [
            "",
            "\n",
            "0123456789abcde\n",
            "0123456789 abcdef\n",
            "\u{e4}123456789abcdef\n",
        ] {
            let said = said(weak, 0o600).unwrap_err();
            assert!(
                said.starts_with("the token file PATH has no token in its first line; write 16 "),
                "{said}"
            );
        }
        assert!(
            Token::read(&directory.path().join("none"))
                .unwrap_err()
                .to_string()
                .contains("No such file")
        );
        assert_eq!(format!("{:?}", Token("secret".into())), "Token");
    }
}
