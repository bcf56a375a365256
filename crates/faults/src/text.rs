//! Faults as text, for command lines and tables of results. What is written reads back the same.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use crate::class::{CLASS_NAMES, Class, OPTION_NAMES, OptionKind};
use crate::fault::{
    Coalesce, Corrupt, DropNth, Fault, Faults, GilbertElliott, Jitter, Nat, Place, Ppm, Rate,
    Reorder, Strip, Which,
};
use crate::time::nanos;

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{fault}")?;
        }
        Ok(())
    }
}

/// A list, separated by commas; blanks around them don't matter, and an empty text is an empty list.
impl FromStr for Faults {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let faults = text.split(',').zip(1..).map(|(fault, number)| {
            fault
                .parse()
                .map_err(|error: FaultError| FaultError { number, ..error })
        });
        faults.collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss(chance) => write!(f, "loss={chance}"),
            Self::Burst(GilbertElliott {
                enter,
                leave,
                bad,
                good,
            }) => {
                write!(f, "burst={enter}:{leave}")?;
                match (*bad, *good) {
                    (Ppm::ALWAYS, Ppm(0)) => Ok(()),
                    (bad, Ppm(0)) => write!(f, ":{bad}"),
                    (bad, good) => write!(f, ":{bad}:{good}"),
                }
            }
            Self::Drop(DropNth { first, last, class }) if first == last => {
                write!(f, "drop={first}:{class}")
            }
            Self::Drop(DropNth { first, last, class }) => write!(f, "drop={first}..{last}:{class}"),
            Self::Delay(delay) => write!(f, "delay={}", Span(*delay)),
            Self::Jitter(Jitter { max, reorder }) => {
                write!(f, "jitter={}", Span(*max))?;
                f.write_str(if *reorder { ":reorder" } else { "" })
            }
            Self::Reorder(Reorder { which, extra }) => match which {
                Which::Chance(chance) => write!(f, "reorder={chance}:{}", Span(*extra)),
                Which::Every(n) => write!(f, "reorder=every{n}:{}", Span(*extra)),
            },
            Self::Duplicate(chance) => write!(f, "duplicate={chance}"),
            Self::Corrupt(Corrupt {
                chance,
                place,
                fixed,
            }) => {
                write!(f, "corrupt={chance}")?;
                match (place, fixed) {
                    (Place::Payload, false) => Ok(()),
                    (Place::Payload, true) => f.write_str(":payload:fixed"),
                    (Place::Header, false) => f.write_str(":header"),
                    (Place::Header, true) => f.write_str(":header:fixed"),
                }
            }
            Self::Rate(Rate {
                bits_per_second,
                queue_bytes,
            }) => {
                let (rate, rate_unit) = largest_unit(*bits_per_second, RATE_UNITS);
                let (queue, queue_unit) = largest_unit(*queue_bytes, SIZE_UNITS);
                write!(f, "rate={rate}{rate_unit}:{queue}{queue_unit}")
            }
            Self::Blackhole { from, until } => {
                write!(f, "blackhole={}..", Span(*from))?;
                until.map_or(Ok(()), |until| Span(until).fmt(f))
            }
            Self::Flap { period, down } => write!(f, "flap={}:{}", Span(*period), Span(*down)),
            Self::Strip(rule) => rule.fmt(f),
            Self::WindowScale(shift) => write!(f, "wscale={shift}"),
            Self::MssClamp(mss) => write!(f, "mss={mss}"),
            Self::TimestampShift(shift) => write!(f, "shift-ts={shift}"),
            Self::DoubleOption { option, class } => write!(f, "double={option}@{class}"),
            Self::Resegment { offset, chance } if *chance == Ppm::ALWAYS => {
                write!(f, "resegment={offset}")
            }
            Self::Resegment { offset, chance } => write!(f, "resegment={offset}:{chance}"),
            Self::Coalesce(Coalesce { wait, max_len }) => {
                write!(f, "coalesce={}:{max_len}", Span(*wait))
            }
            Self::Nat(nat) => nat.fmt(f),
            Self::IsnRandomiser => f.write_str("isn"),
            Self::CeMark(chance) => write!(f, "ce={chance}"),
        }
    }
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let text = text.trim();
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let Some((_, form)) = FORMS.iter().find(|(known, _)| *known == name) else {
            return Err(FaultError::new(text, Problem::Unknown));
        };
        parse(name, value).ok_or_else(|| FaultError::new(text, Problem::Value(form)))
    }
}

fn parse(name: &str, value: &str) -> Option<Fault> {
    let parts: Vec<&str> = value.split(':').collect();
    Some(match (name, parts.as_slice()) {
        ("loss", [chance]) => Fault::Loss(chance.parse().ok()?),
        ("burst", [enter, leave, rest @ ..]) => Fault::Burst(parse_burst(enter, leave, rest)?),
        ("drop", [which, class]) => Fault::Drop(parse_drop(which, class)?),
        ("delay", [delay]) => Fault::Delay(span(delay)?),
        ("jitter", [max, rest @ ..]) => Fault::Jitter(Jitter {
            max: span(max)?,
            reorder: match rest {
                [] => false,
                ["reorder"] => true,
                _ => return None,
            },
        }),
        ("reorder", [which, extra]) => Fault::Reorder(Reorder {
            which: match which.strip_prefix("every") {
                Some(n) => Which::Every(n.parse().ok().filter(|n| *n > 0)?),
                None => Which::Chance(which.parse().ok()?),
            },
            extra: span(extra)?,
        }),
        ("duplicate", [chance]) => Fault::Duplicate(chance.parse().ok()?),
        ("corrupt", [chance, rest @ ..]) => {
            let (place, fixed) = match rest {
                [] | ["payload"] => (Place::Payload, false),
                ["header"] => (Place::Header, false),
                ["payload", "fixed"] => (Place::Payload, true),
                ["header", "fixed"] => (Place::Header, true),
                _ => return None,
            };
            Fault::Corrupt(Corrupt {
                chance: chance.parse().ok()?,
                place,
                fixed,
            })
        }
        ("rate", [rate, queue]) => Fault::Rate(Rate {
            bits_per_second: quantity(rate, RATE_UNITS).filter(|rate| *rate > 0)?,
            queue_bytes: quantity(queue, SIZE_UNITS)?,
        }),
        ("blackhole", [range]) => {
            let (from, until) = range.split_once("..")?;
            let until = (!until.is_empty()).then_some(until);
            let (from, until) = (span(from)?, until.map(|until| span(until).ok_or(())));
            let until = until.transpose().ok()?;
            if until.is_some_and(|until| until <= from) {
                return None;
            }
            Fault::Blackhole { from, until }
        }
        ("flap", [period, down]) => {
            let (period, down) = (span(period)?, span(down)?);
            if period.is_zero() || down > period {
                return None;
            }
            Fault::Flap { period, down }
        }
        ("strip", [rule]) => Fault::Strip(parse_strip(rule)?),
        ("wscale", [shift]) => Fault::WindowScale(shift.parse().ok()?),
        ("mss", [mss]) => Fault::MssClamp(mss.parse().ok()?),
        ("shift-ts", [shift]) => Fault::TimestampShift(shift.parse().ok()?),
        ("double", [rule]) => {
            let (option, class) = rule.split_once('@').unwrap_or((rule, "any"));
            Fault::DoubleOption {
                option: option.parse().ok()?,
                class: class.parse().ok()?,
            }
        }
        ("resegment", [offset, rest @ ..]) => Fault::Resegment {
            offset: offset.parse().ok().filter(|offset| *offset > 0)?,
            chance: match rest {
                [] => Ppm::ALWAYS,
                [chance] => chance.parse().ok()?,
                _ => return None,
            },
        },
        ("coalesce", [wait, max_len]) => Fault::Coalesce(Coalesce {
            wait: span(wait)?,
            max_len: max_len.parse().ok()?,
        }),
        ("nat", _) => Fault::Nat(parse_nat(value)?), // addresses have colons
        ("isn", [""]) => Fault::IsnRandomiser,
        ("ce", [chance]) => Fault::CeMark(chance.parse().ok()?),
        _ => return None,
    })
}

fn parse_burst(enter: &str, leave: &str, rest: &[&str]) -> Option<GilbertElliott> {
    let (bad, good) = match rest {
        [] => (Ppm::ALWAYS, Ppm(0)),
        [bad] => (bad.parse().ok()?, Ppm(0)),
        [bad, good] => (bad.parse().ok()?, good.parse().ok()?),
        _ => return None,
    };
    Some(GilbertElliott {
        enter: enter.parse().ok()?,
        leave: leave.parse().ok()?,
        bad,
        good,
    })
}

fn parse_drop(which: &str, class: &str) -> Option<DropNth> {
    let (first, last) = which.split_once("..").unwrap_or((which, which));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    let class = class.parse().ok()?;
    (1 <= first && first <= last).then_some(DropNth { first, last, class })
}

fn parse_strip(rule: &str) -> Option<Strip> {
    let (rule, from) = rule.split_once('#').unwrap_or((rule, "1"));
    let (option, class) = rule.split_once('@').unwrap_or((rule, "any"));
    Some(Strip {
        option: option.parse().ok()?,
        class: class.parse().ok()?,
        from: from.parse().ok().filter(|from| *from > 0)?,
    })
}

fn parse_nat(value: &str) -> Option<Nat> {
    let mut nat = Nat::default();
    for part in value.split('+').filter(|part| !part.is_empty()) {
        if let Some(every) = part.strip_prefix("every") {
            nat.every = Some(span(every).filter(|every| !every.is_zero())?);
        } else if let Some(at) = part.strip_prefix("at") {
            nat.at.push(span(at)?);
        } else if let Ok(v4) = part.parse() {
            nat.v4 = Some(v4);
        } else {
            nat.v6 = Some(part.parse().ok()?);
        }
    }
    nat.at.is_sorted().then_some(nat)
}

impl fmt::Display for Strip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            option,
            class,
            from,
        } = self;
        write!(f, "strip={option}@{class}")?;
        if *from == 1 {
            Ok(())
        } else {
            write!(f, "#{from}")
        }
    }
}

impl fmt::Display for Nat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![];
        parts.extend(self.v4.map(|v4| v4.to_string()));
        parts.extend(self.v6.map(|v6| v6.to_string()));
        parts.extend(self.every.map(|every| format!("every{}", Span(every))));
        parts.extend(self.at.iter().map(|at| format!("at{}", Span(*at))));
        f.write_str("nat")?;
        if parts.is_empty() {
            return Ok(());
        }
        write!(f, "={}", parts.join("+"))
    }
}

/// `1%`, `0.05%`.
impl fmt::Display for Ppm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_000, self.0 % 10_000);
        if rest == 0 {
            return write!(f, "{whole}%");
        }
        let decimals = format!("{rest:04}");
        write!(f, "{whole}.{}%", decimals.trim_end_matches('0'))
    }
}

impl FromStr for Ppm {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let ppm = quantity(text, &[("%", 10_000)]).and_then(|ppm| u32::try_from(ppm).ok());
        ppm.filter(|ppm| *ppm <= Self::ALWAYS.0)
            .map(Self)
            .ok_or_else(|| FaultError::new(text, Problem::Value("0% to 100%, in steps of 0.0001%")))
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::With(option) = self {
            return option.fmt(f);
        }
        let named = CLASS_NAMES.iter().find(|(_, class)| class == self);
        f.write_str(named.map_or("any", |(name, _)| name))
    }
}

impl FromStr for Class {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let named = CLASS_NAMES.iter().find(|(name, _)| *name == text);
        named.map_or_else(|| text.parse().map(Self::With), |(_, class)| Ok(*class))
    }
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self) {
            (Some(name), _) => f.write_str(name),
            (None, Self::Kind(kind)) => write!(f, "kind{kind}"),
            (None, Self::Mptcp(subtype)) => write!(f, "mptcp{subtype}"),
        }
    }
}

impl FromStr for OptionKind {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let by_number = || {
            if let Some(kind) = text.strip_prefix("kind") {
                let kind = kind.parse().ok().filter(|kind| *kind > 1);
                return kind.map(Self::Kind);
            }
            let subtype = text.strip_prefix("mptcp")?.parse().ok();
            subtype.filter(|subtype| *subtype < 16).map(Self::Mptcp)
        };
        // A number that has a name means the same.
        let option = Self::from_name(text).or_else(by_number);
        option.ok_or_else(|| FaultError::new(text, Problem::Option))
    }
}

/// A duration in the largest unit that it is a whole number of.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unit) = largest_unit(nanos(self.0), TIME_UNITS);
        write!(f, "{count}{unit}")
    }
}

fn span(text: &str) -> Option<Duration> {
    quantity(text, TIME_UNITS).map(Duration::from_nanos)
}

type Units = &'static [(&'static str, u64)];

const TIME_UNITS: Units = &[
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
    ("s", 1_000_000_000),
];
const RATE_UNITS: Units = &[
    ("gbit", 1_000_000_000),
    ("mbit", 1_000_000),
    ("kbit", 1000),
    ("bit", 1),
];
const SIZE_UNITS: Units = &[("mb", 1_000_000), ("kb", 1000), ("b", 1)];

/// A decimal number with a unit, as a whole number of the smallest unit.
fn quantity(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (number, unit) = units
        .iter()
        .find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)))?;
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(decimals) {
        return None;
    }
    let mut total = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    for digit in decimals.bytes() {
        if place % 10 != 0 {
            return None; // finer than the smallest unit
        }
        place /= 10;
        total = total.checked_add(place * u64::from(digit - b'0'))?;
    }
    Some(total)
}

fn largest_unit(value: u64, units: Units) -> (u64, &'static str) {
    let fitting = units.iter().filter(|(_, size)| value.is_multiple_of(*size));
    let smallest = units.iter().min_by_key(|(_, size)| *size);
    let best = fitting.max_by_key(|(_, size)| *size).or(smallest);
    best.map_or((value, ""), |(unit, size)| (value / size, unit))
}

/// A text that is no fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultError {
    /// Its number in the list, from 1.
    number: usize,
    /// The fault as written.
    text: String,
    problem: Problem,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Problem {
    /// The name before the equals sign.
    Unknown,
    /// The value; how it is written.
    Value(&'static str),
    /// A TCP option or a class of packets.
    Option,
}

impl FaultError {
    fn new(text: &str, problem: Problem) -> Self {
        Self {
            number: 1,
            text: text.to_owned(),
            problem,
        }
    }
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, text, .. } = self;
        match self.problem {
            Problem::Unknown => {
                let known: Vec<_> = FORMS.iter().map(|(name, _)| *name).collect();
                let known = known.join(", ");
                write!(
                    f,
                    "fault {number}, `{text}`: no such fault; there are {known}"
                )
            }
            Problem::Value(form) => write!(f, "fault {number}, `{text}`: expected {form}"),
            Problem::Option => {
                let classes = CLASS_NAMES.iter().map(|(name, _)| *name);
                let options = OPTION_NAMES.iter().map(|(name, _)| *name);
                let known = classes.chain(options).collect::<Vec<_>>().join(", ");
                write!(f, "`{text}`: expected one of {known}, kind<n>")
            }
        }
    }
}

impl core::error::Error for FaultError {}

/// Names of the faults, and how each is written.
const FORMS: &[(&str, &str)] = &[
    ("loss", "loss=PERCENT, e.g. loss=1%"),
    (
        "burst",
        "burst=ENTER:LEAVE[:BAD[:GOOD]] in percent, e.g. burst=1%:25%",
    ),
    (
        "drop",
        "drop=N[..M]:CLASS, e.g. drop=1:syn-ack or drop=2..4:data (classes: any, syn, syn-ack, \
         data, ack, fin, rst or the name of an option)",
    ),
    ("delay", "delay=TIME, e.g. delay=20ms"),
    ("jitter", "jitter=TIME[:reorder], e.g. jitter=5ms"),
    (
        "reorder",
        "reorder=PERCENT:TIME or reorder=everyN:TIME, e.g. reorder=10%:5ms",
    ),
    ("duplicate", "duplicate=PERCENT, e.g. duplicate=1%"),
    (
        "corrupt",
        "corrupt=PERCENT[:payload|:header[:fixed]], e.g. corrupt=0.1%:payload:fixed",
    ),
    ("rate", "rate=RATE:QUEUE, e.g. rate=50mbit:100kb"),
    (
        "blackhole",
        "blackhole=FROM..[UNTIL] with UNTIL after FROM, e.g. blackhole=2s..5s",
    ),
    (
        "flap",
        "flap=PERIOD:DOWN with DOWN not above PERIOD, e.g. flap=2s:500ms",
    ),
    (
        "strip",
        "strip=OPTION[@CLASS][#FROM], e.g. strip=mptcp@syn-ack (options: mptcp, dss, mp-join, \
         timestamps, ... or kind<n>)",
    ),
    ("wscale", "wscale=SHIFT, e.g. wscale=3"),
    ("mss", "mss=BYTES, e.g. mss=1200"),
    ("shift-ts", "shift-ts=TICKS, e.g. shift-ts=1000"),
    ("double", "double=OPTION[@CLASS], e.g. double=mptcp@syn"),
    (
        "resegment",
        "resegment=BYTES[:PERCENT] with BYTES above 0, e.g. resegment=500:10%",
    ),
    ("coalesce", "coalesce=TIME:BYTES, e.g. coalesce=1ms:1500"),
    (
        "nat",
        "nat[=PART[+PART...]] with parts ADDRESS, everyTIME, atTIME (in order), e.g. \
         nat=192.0.2.1+every30s",
    ),
    ("isn", "isn, without a value"),
    ("ce", "ce=PERCENT, e.g. ce=10%"),
];
