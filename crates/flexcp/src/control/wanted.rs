//! Which connections a client wants, as the query of its request says it.

use serde::Serialize;
use utoipa::IntoParams;

use super::fault::Fault;
use crate::config;

/// Which connections are asked for: those that all of it fits. The default is all of them.
#[derive(Clone, PartialEq, Eq, Default, Serialize, IntoParams, Debug)]
#[into_params(parameter_in = Query)]
pub struct Wanted {
    /// In this state; may be given several times, or with commas between several.
    #[param(example = json!(["translating"]))]
    pub state: Vec<String>,
    /// Of the service with this name.
    #[param(required = false)]
    pub service: Option<String>,
    /// From there: `192.0.2.1`, `192.0.2.0/24`, `192.0.2.1:40312`, `192.0.2.0/24:443` or `:443`.
    #[param(required = false)]
    pub client: Option<String>,
    /// To there: what the client connected to, or the back end.
    #[param(required = false)]
    pub server: Option<String>,
    /// With a subflow of the access with this name.
    #[param(required = false)]
    pub access: Option<String>,
    /// Of the rule with this name.
    #[param(required = false)]
    pub rule: Option<String>,
}

impl Wanted {
    /// Reads the query of a request, such as `state=plain&client=10.0.0.0/8`.
    ///
    /// # Errors
    /// When it has a parameter that there is not, or one twice.
    pub fn from_query(query: &str) -> Result<Self, Fault> {
        let mut wanted = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let only = match name.as_ref() {
                "state" => {
                    wanted.state.extend(value.split(',').map(str::to_owned));
                    continue;
                }
                "service" => &mut wanted.service,
                "client" => &mut wanted.client,
                "server" => &mut wanted.server,
                "access" => &mut wanted.access,
                "rule" => &mut wanted.rule,
                _ => return Err(unknown(&name, &NAMES)),
            };
            if only.replace(value.into_owned()).is_some() {
                return Err(twice(&name));
            }
        }
        Ok(wanted)
    }

    /// The query that asks for them; empty for all.
    #[must_use]
    pub fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for state in &self.state {
            query.append_pair("state", state);
        }
        for (name, value) in [
            ("service", &self.service),
            ("client", &self.client),
            ("server", &self.server),
            ("access", &self.access),
            ("rule", &self.rule),
        ] {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        query.finish()
    }
}

/// The query of a request that takes no parameters.
pub(super) fn none(query: Option<&str>) -> Result<(), Fault> {
    let first = query.and_then(|query| form_urlencoded::parse(query.as_bytes()).next());
    match first {
        None => Ok(()),
        Some((name, _)) => Err(Fault::parameter(
            &name,
            &format!("there is no parameter `{name}` here; leave it out, as this takes none"),
        )),
    }
}

/// About a parameter that is not among those that there are.
pub(super) fn unknown(name: &str, known: &[&str]) -> Fault {
    let hint = match config::similar(name, known) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => format!("known here: {}", known.join(", ")),
    };
    Fault::parameter(name, &format!("there is no parameter `{name}`; {hint}"))
}

/// About a parameter that is given more than once.
pub(super) fn twice(name: &str) -> Fault {
    Fault::parameter(name, &format!("`{name}` is given twice; give it once"))
}

const NAMES: [&str; 6] = ["state", "service", "client", "server", "access", "rule"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_read_as_it_is_written() {
        let wanted = Wanted {
            state: vec!["plain".into(), "half-closed".into()],
            service: Some("a & b=c".into()),
            client: Some("2001:db8::/32:443".into()),
            server: None,
            access: Some("\u{e4}".into()),
            rule: Some("b/c".into()),
        };
        assert_eq!(Wanted::from_query(&wanted.query()), Ok(wanted));
        assert_eq!(Wanted::default().query(), "");
        assert_eq!(Wanted::from_query(""), Ok(Wanted::default()));
        let several = Wanted::from_query("state=plain,reset&state=closed").unwrap();
        assert_eq!(several.state, ["plain", "reset", "closed"]);
    }

    #[test]
    fn what_is_no_parameter_is_named() {
        let said = |query| Wanted::from_query(query).unwrap_err();
        let fault = said("clinet=10.0.0.1");
        assert_eq!(fault.place, "parameter `clinet`");
        assert_eq!(
            fault.to_string(),
            "there is no parameter `clinet`; did you mean `client`?"
        );
        assert_eq!(
            said("x=1").to_string(),
            "there is no parameter `x`; known here: state, service, client, server, access, rule"
        );
        assert_eq!(
            said("client=10.0.0.1&client=10.0.0.2").to_string(),
            "`client` is given twice; give it once"
        );
        assert_eq!(none(None), Ok(()));
        assert_eq!(none(Some("")), Ok(()));
        assert_eq!(none(Some("a=1")).unwrap_err().place, "parameter `a`");
    }
}
