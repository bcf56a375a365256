//! Convert (RFC 8803): one message of the client's, one in answer.

use alloc::vec::Vec;

use flexcp_wire::{
    CONVERT_HEADER_LEN, CONVERT_MAX_LEN, CONVERT_VERSION, Connect, ConvertError, ConvertFault,
    ConvertMessage, ConvertTlv, ConvertWriter, kind,
};

use crate::{Answer, Cookie, Fault, Gate, Next, Refusal, Step, Target, Wish};

/// TCP options that are converted (section 6.2.4).
const CONVERTED: [u8; 3] = [kind::SACK_PERMITTED, kind::TIMESTAMPS, kind::MPTCP];

/// What a Connect says of these is passed over (sections 7.1 to 7.3); the end and padding cannot stand there.
const PASSED_OVER: [u8; 3] = [kind::MSS, kind::WINDOW_SCALE, kind::SACK];

/// What each SYN to a server has where the client's has it. A value of the client's own has no meaning there (sections 7.3 and 7.4).
const ALWAYS: [u8; 2] = [kind::SACK_PERMITTED, kind::TIMESTAMPS];

/// The client's message.
pub(crate) fn message(bytes: &[u8], gate: &dyn Gate, say: &mut Vec<u8>) -> Step {
    let (message, len) = match ConvertMessage::parse(bytes) {
        Ok(found) => found,
        Err(fault) => return unread(fault, bytes, say),
    };
    let next = match understood(&message, gate) {
        Ok(Next::Told) => {
            granted(true, None, say);
            Next::Told
        }
        Ok(next) => next,
        Err((fault, error)) => {
            tell_error(&error.borrowed(&bytes[..len]), say);
            Next::Close(fault)
        }
    };
    Step { taken: len, next }
}

/// The bytes are no message, or none yet.
fn unread(fault: ConvertFault, bytes: &[u8], say: &mut Vec<u8>) -> Step {
    let (taken, error, fault) = match fault {
        ConvertFault::Incomplete(_) => {
            return Step {
                taken: 0,
                next: Next::More,
            };
        }
        ConvertFault::NotConvert | ConvertFault::NoLength => {
            return Step {
                taken: 0,
                next: Next::Reset(Fault::Protocol),
            };
        }
        // How long a message of another version is nobody knows.
        ConvertFault::Version(_) => (
            CONVERT_HEADER_LEN,
            ConvertError::UnsupportedVersion(&[CONVERT_VERSION]),
            Fault::Protocol,
        ),
        ConvertFault::Malformed { len } => (
            len,
            ConvertError::Malformed(echo(&bytes[..len])),
            Fault::Malformed,
        ),
        ConvertFault::Unsupported { len, .. } => (
            len,
            ConvertError::Unsupported(echo(&bytes[..len])),
            Fault::Unsupported,
        ),
    };
    tell_error(&error, say);
    Step {
        taken,
        next: Next::Close(fault),
    }
}

/// An error whose value is not known before the message goes.
enum Told {
    Malformed,
    MissingCookie(alloc::boxed::Box<[u8]>),
    NotAuthorized,
    UnsupportedOption(Vec<u8>),
}

impl Told {
    fn borrowed<'a>(&'a self, message: &'a [u8]) -> ConvertError<'a> {
        match self {
            Self::Malformed => ConvertError::Malformed(echo(message)),
            Self::MissingCookie(cookie) => ConvertError::MissingCookie(cookie),
            Self::NotAuthorized => ConvertError::NotAuthorized,
            Self::UnsupportedOption(kinds) => ConvertError::UnsupportedOption(kinds),
        }
    }
}

/// What a message of a right form asks for, or why it is refused. The cookie comes first: who brings none learns nothing else.
fn understood(message: &ConvertMessage<'_>, gate: &dyn Gate) -> Result<Next, (Fault, Told)> {
    let cookie = message.tlvs().find_map(|tlv| match tlv {
        ConvertTlv::Cookie(cookie) => Some(cookie),
        _ => None,
    });
    match gate.judge_cookie(cookie) {
        Cookie::Right => {}
        Cookie::Wrong => return Err((Fault::Credentials, Told::NotAuthorized)),
        Cookie::Missing(next) => return Err((Fault::Credentials, Told::MissingCookie(next))),
    }
    let (mut informs, mut wanted) = (false, None);
    for tlv in message.tlvs() {
        match tlv {
            ConvertTlv::Info => informs = true,
            ConvertTlv::Connect(connect) => wanted = Some(connect),
            ConvertTlv::Cookie(_) => {}
            // What only a converter says.
            ConvertTlv::ExtendedTcpHeader(_)
            | ConvertTlv::SupportedExtensions(_)
            | ConvertTlv::Error(_) => return Err((Fault::Malformed, Told::Malformed)),
        }
    }
    let connect = match wanted {
        Some(connect) => connect,
        None if informs => return Ok(Next::Told),
        None => return Err((Fault::Malformed, Told::Malformed)),
    };
    let refused = unsupported(&connect);
    if !refused.is_empty() {
        return Err((Fault::Unsupported, Told::UnsupportedOption(refused)));
    }
    let wish = Wish {
        to: Target::Ip(connect.addr),
        port: connect.port,
    };
    let answer = Answer::Convert {
        informs,
        tells_options: !connect.options.is_empty(),
    };
    Ok(Next::Wish(answer, wish))
}

/// Kinds of TCP options that a Connect asks for and the server cannot be sent.
fn unsupported(connect: &Connect<'_>) -> Vec<u8> {
    let can_be_sent = |(kind, value): &(u8, &[u8])| {
        PASSED_OVER.contains(kind) || (ALWAYS.contains(kind) && value.is_empty())
    };
    let options = connect.tcp_options();
    let refused = options.filter(|option| !can_be_sent(option));
    refused.map(|(kind, _)| kind).collect()
}

/// A message as an error repeats it: as much as it can hold.
fn echo(message: &[u8]) -> &[u8] {
    // Two headers and the code stand before it.
    let most = CONVERT_MAX_LEN - 8;
    &message[..message.len().min(most)]
}

/// The answer to a client that is connected; `options` are told to one that asked for some.
pub(crate) fn granted(informs: bool, options: Option<&[u8]>, say: &mut Vec<u8>) {
    let tlvs = [
        options.map(ConvertTlv::ExtendedTcpHeader),
        informs.then_some(ConvertTlv::SupportedExtensions(&CONVERTED)),
    ];
    tell(tlvs.into_iter().flatten(), say);
}

/// The answer to one that is not.
pub(crate) fn refused(why: Refusal, say: &mut Vec<u8>) {
    let error = match why {
        Refusal::NotAllowed => ConvertError::NotAuthorized,
        Refusal::Reset => ConvertError::ConnectionReset,
        Refusal::Unreachable { code, .. } => ConvertError::Unreachable(code),
        Refusal::ClientLimit => ConvertError::ResourceExceeded(0),
        Refusal::NoRoom(seconds) => ConvertError::ResourceExceeded(seconds),
        Refusal::NoName | Refusal::Expired | Refusal::NoNetwork => ConvertError::NetworkFailure(0),
    };
    tell_error(&error, say);
}

fn tell_error(error: &ConvertError<'_>, say: &mut Vec<u8>) {
    tell([ConvertTlv::Error(*error)].into_iter(), say);
}

fn tell<'a>(tlvs: impl Iterator<Item = ConvertTlv<'a>>, say: &mut Vec<u8>) {
    let mut out = [0; CONVERT_MAX_LEN];
    let mut writer = ConvertWriter::new(&mut out);
    for tlv in tlvs {
        let fits = writer.push(&tlv);
        debug_assert!(fits, "{tlv:?} has no room");
    }
    let len = writer.finish();
    say.extend_from_slice(&out[..len]);
}
