//! JSON in the canonical form of RFC 8785, with one exception: a number that
//! is not exactly what its double is printed as keeps all its digits, so that
//! two amounts that round to the same double stay two amounts. Integers keep
//! theirs always; up to 2^53 that is what the RFC says anyway.
//!
//! One pass writes the canonical text while it reads: most tokens are copied,
//! members are put in order when their object closes, and no tree is built.
//! Strings with escapes go through `serde_json` and doubles through `ryu-js`,
//! which know the fine points.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

/// How deeply arrays and objects may nest.
pub const DEPTH_MAX: usize = 128;

/// The canonical form of a JSON text: members ordered by the UTF-16 code units
/// of their names, no white space, numbers as ECMAScript prints them (`1.0`,
/// `1e0` and `1` are one, `-0` is `0`), except that integer literals keep all
/// their digits however many they are, and so does every number whose value is
/// not exactly the one that would be printed.
///
/// `None` for what has no such form: text that is not JSON or not UTF-8, lone
/// surrogates, a name that occurs twice in an object (after unescaping), a
/// fraction or exponent too large for a double, or nesting beyond
/// [`DEPTH_MAX`].
///
/// ```
/// use onceward_core::fingerprint::canonical_json;
///
/// let canonical = canonical_json(br#"{ "b": 1.0, "a": 9007199254740993 }"#);
/// assert_eq!(canonical.as_deref(), Some(&br#"{"a":9007199254740993,"b":1}"#[..]));
/// assert_eq!(canonical_json(br#"{"a":1,"a":2}"#), None);
/// ```
pub fn canonical_json(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut pass = Pass {
        text: std::str::from_utf8(bytes).ok()?,
        at: 0,
        out: Vec::with_capacity(bytes.len()),
    };
    pass.value(0)?;
    pass.skip_space();
    (pass.at == bytes.len()).then_some(pass.out)
}

/// The bytes that end a run of plain characters in a string. A table, because every
/// byte of every body is looked at.
static ENDS_PLAIN: [bool; 256] = {
    let mut ends = [false; 256];
    let mut control = 0;
    while control < 0x20 {
        ends[control] = true;
        control += 1;
    }
    ends[b'"' as usize] = true;
    ends[b'\\' as usize] = true;
    ends
};

struct Pass<'a> {
    text: &'a str,
    /// The position of the next byte to read.
    at: usize,
    /// The canonical text so far.
    out: Vec<u8>,
}

struct Member<'a> {
    name: Cow<'a, str>,
    /// Where name, colon and value are written.
    written: Range<usize>,
}

impl<'a> Pass<'a> {
    fn value(&mut self, depth: usize) -> Option<()> {
        self.skip_space();
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string().map(drop),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            _ => self.number(),
        }
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.open(b'[', depth)?;
        if self.close(b']') {
            return Some(());
        }
        loop {
            self.value(depth + 1)?;
            if self.close(b']') {
                return Some(());
            }
            self.copy(b',')?;
        }
    }

    fn object(&mut self, depth: usize) -> Option<()> {
        self.open(b'{', depth)?;
        let start = self.out.len();
        if self.close(b'}') {
            return Some(());
        }
        let mut members = Vec::new();
        loop {
            members.push(self.member(depth)?);
            if self.close(b'}') {
                break;
            }
            self.copy(b',')?;
        }
        self.order(start, members)
    }

    fn member(&mut self, depth: usize) -> Option<Member<'a>> {
        self.skip_space();
        let start = self.out.len();
        let name = self.string()?;
        self.copy(b':')?;
        self.value(depth + 1)?;
        Some(Member {
            name,
            written: start..self.out.len(),
        })
    }

    /// Puts the members, which were written from `start` on, into the order of
    /// their names. Two of one name have no order.
    fn order(&mut self, start: usize, mut members: Vec<Member<'a>>) -> Option<()> {
        let is_ordered = |a: &Member<'_>, b: &Member<'_>| by_code_units(&a.name, &b.name).is_lt();
        if members.is_sorted_by(is_ordered) {
            return Some(());
        }
        members.sort_unstable_by(|a, b| by_code_units(&a.name, &b.name));
        if !members.is_sorted_by(is_ordered) {
            return None;
        }
        let written = self.out.split_off(start);
        for member in &members {
            let Range {
                start: from,
                end: to,
            } = member.written;
            self.out
                .extend_from_slice(&written[from - start..to - start]);
            self.out.push(b',');
        }
        // In the place of the last comma.
        self.out.pop();
        self.out.push(b'}');
        Some(())
    }

    /// Reads a string, writes it, and returns its text.
    fn string(&mut self) -> Option<Cow<'a, str>> {
        let (token, escapes) = self.string_token()?;
        if !escapes {
            // Without escapes the string is already canonical.
            self.out.extend_from_slice(token.as_bytes());
            return token.get(1..token.len() - 1).map(Cow::Borrowed);
        }
        let text: String = serde_json::from_str(token).ok()?;
        serde_json::to_writer(&mut self.out, &text).ok()?;
        Some(Cow::Owned(text))
    }

    /// The string at this place with its quotes, and whether it holds escapes.
    fn string_token(&mut self) -> Option<(&'a str, bool)> {
        let start = self.at;
        self.take(b'"').then_some(())?;
        let mut escapes = false;
        loop {
            let rest = self.text.as_bytes().get(self.at..)?;
            let plain = rest
                .iter()
                .position(|byte| ENDS_PLAIN[usize::from(*byte)])?;
            self.at += plain;
            if self.take(b'"') {
                return Some((self.text.get(start..self.at)?, escapes));
            }
            self.take(b'\\').then_some(())?;
            // An escaped character does not end the string.
            self.at += 1;
            escapes = true;
        }
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        let end_of_integer = self.at;
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        let token = self.text.get(start..self.at)?;
        if self.at == end_of_integer && token != "-0" {
            self.out.extend_from_slice(token.as_bytes());
            return Some(());
        }
        let double: f64 = token
            .parse()
            .ok()
            .filter(|double: &f64| double.is_finite())?;
        let mut buffer = ryu_js::Buffer::new();
        let printed = buffer.format_finite(double);
        let exact = Decimal::parse(token)?;
        if Decimal::parse(printed)? == exact {
            self.out.extend_from_slice(printed.as_bytes());
        } else {
            exact.write(&mut self.out);
        }
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(())
    }

    fn literal(&mut self, word: &str) -> Option<()> {
        let rest = self.text.get(self.at..)?;
        rest.starts_with(word).then_some(())?;
        self.at += word.len();
        self.out.extend_from_slice(word.as_bytes());
        Some(())
    }

    /// Opens an array or object, unless it is nested too deeply.
    fn open(&mut self, bracket: u8, depth: usize) -> Option<()> {
        if depth == DEPTH_MAX {
            return None;
        }
        self.copy(bracket)
    }

    /// Reads and writes this bracket if it comes next.
    fn close(&mut self, bracket: u8) -> bool {
        self.copy(bracket).is_some()
    }

    /// Reads and writes this byte if it comes next, after any white space.
    fn copy(&mut self, byte: u8) -> Option<()> {
        self.skip_space();
        self.take(byte).then(|| self.out.push(byte))
    }

    /// Reads this byte if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }
}

/// A number by its exact value: `digits` × 10^`exponent`, without zeros at
/// either end of the digits. Zero has no digits.
#[derive(Debug, PartialEq, Eq)]
struct Decimal {
    is_negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Reads a number of JSON's grammar; `None` where the exponent does not fit.
    fn parse(token: &str) -> Option<Self> {
        let (is_negative, token) = match token.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, token),
        };
        let (mantissa, exponent) = token.split_once(['e', 'E']).unwrap_or((token, "0"));
        let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = [integer.as_bytes(), fraction.as_bytes()].concat();
        let leading = all.iter().take_while(|digit| **digit == b'0').count();
        let trailing = all.iter().rev().take_while(|digit| **digit == b'0').count();
        if leading == all.len() {
            return Some(Self {
                is_negative: false,
                digits: Vec::new(),
                exponent: 0,
            });
        }
        let exponent: i64 = exponent.parse().ok()?;
        let moved = i64::try_from(fraction.len()).ok()? - i64::try_from(trailing).ok()?;
        Some(Self {
            is_negative,
            digits: all[leading..all.len() - trailing].to_vec(),
            exponent: exponent.checked_sub(moved)?,
        })
    }

    /// Writes all digits: an integer as one is written, all else in one form
    /// that no double is printed in.
    fn write(&self, out: &mut Vec<u8>) {
        if self.is_negative {
            out.push(b'-');
        }
        out.extend_from_slice(&self.digits);
        match usize::try_from(self.exponent) {
            // Finite as a double, so the zeros are a few hundred at most.
            Ok(zeros) => out.resize(out.len() + zeros, b'0'),
            Err(_) => out.extend_from_slice(format!("e{}", self.exponent).as_bytes()),
        }
    }
}

/// The value at a place in a canonical text.
pub(super) fn value_at<'a>(text: &'a [u8], place: &[String]) -> Option<&'a [u8]> {
    let Some((token, deeper)) = place.split_first() else {
        return Some(text);
    };
    let mut found = None;
    each_child(text, |name, child, _| {
        if name.is(token) {
            found = Some(child);
        }
    });
    value_at(found?, deeper)
}

/// A canonical text without the values at these places.
pub(super) fn without(text: &[u8], places: &[&[String]]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    write_without(&mut out, text, places);
    out
}

fn write_without(out: &mut Vec<u8>, text: &[u8], places: &[&[String]]) {
    let (Some(open), Some(close)) = (text.first(), text.last()) else {
        return;
    };
    if places.is_empty() || !matches!(open, b'{' | b'[') {
        out.extend_from_slice(text);
        return;
    }
    out.push(*open);
    let start = out.len();
    each_child(text, |name, child, label| {
        // The places that lie within this child, from here on.
        let within: Vec<_> = places
            .iter()
            .filter_map(|place| place.split_first())
            .filter(|(token, _)| name.is(token))
            .map(|(_, deeper)| deeper)
            .collect();
        if within.iter().any(|deeper| deeper.is_empty()) {
            return;
        }
        if out.len() > start {
            out.push(b',');
        }
        out.extend_from_slice(label);
        write_without(out, child, &within);
    });
    out.push(*close);
}

/// The name of a child.
enum Name<'a> {
    /// The member of an object, as it is written, in quotes.
    Member(&'a [u8]),
    /// The element of an array.
    Element(usize),
}

impl Name<'_> {
    fn is(&self, token: &str) -> bool {
        match self {
            Self::Element(number) => *token == number.to_string(),
            Self::Member(quoted) if quoted.contains(&b'\\') => {
                serde_json::from_slice::<String>(quoted).is_ok_and(|name| name == token)
            }
            Self::Member(quoted) => quoted.get(1..quoted.len() - 1) == Some(token.as_bytes()),
        }
    }
}

/// Calls back for each member or element of a canonical text: with its name, its
/// value, and the text before the value, which is the name and its colon.
fn each_child<'a>(text: &'a [u8], mut see: impl FnMut(Name<'_>, &'a [u8], &'a [u8])) {
    let is_object = match text.first() {
        Some(b'{') => true,
        Some(b'[') => false,
        _ => return,
    };
    let mut at = 1;
    let mut number = 0;
    while at + 1 < text.len() {
        let start = at;
        if is_object {
            at += value_length(&text[at..]);
        }
        let name = &text[start..at];
        // The colon.
        at += usize::from(is_object);
        let label = &text[start..at];
        let length = value_length(&text[at..]);
        let child = &text[at..at + length];
        if is_object {
            see(Name::Member(name), child, label);
        } else {
            see(Name::Element(number), child, label);
        }
        // The comma, or the bracket at the end.
        at += length + 1;
        number += 1;
    }
}

/// The length of the value at the start of a canonical text.
fn value_length(text: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => at += string_length(&text[at..]),
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' | b',' | b':' if depth == 0 => return at,
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            _ => at += 1,
        }
    }
    at
}

/// The length of the string at the start of a text, with its quotes.
fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    loop {
        match text.get(at) {
            Some(b'"') => return at + 1,
            Some(b'\\') => at += 2,
            Some(_) => at += 1,
            None => return text.len(),
        }
    }
}

/// The order of UTF-16, which puts the astral planes before U+E000.
fn by_code_units(a: &str, b: &str) -> Ordering {
    if a.is_ascii() && b.is_ascii() {
        return a.cmp(b);
    }
    a.encode_utf16().cmp(b.encode_utf16())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    fn canonical(text: &str) -> Option<String> {
        canonical_json(text.as_bytes()).map(|bytes| String::from_utf8(bytes).expect("still text"))
    }

    #[rstest]
    // RFC 8785, 3.2.2 and 3.2.3, but for the first number, which no double holds.
    #[case::rfc_primitives(
        r#"{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
            "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
            "literals": [null, true, false]}"#,
        r#"{"literals":[null,true,false],"numbers":[33333333333333329e-8,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}"#
    )]
    #[case::rfc_order(
        r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",
            "1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control",
            "\u00f6":"Latin Small Letter O With Diaeresis"}"#,
        "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}"
    )]
    #[case::space(
        " { \"b\" : [ 1 , { } , [ ] ] ,\r\n\t\"a\" : null } ",
        r#"{"a":null,"b":[1,{},[]]}"#
    )]
    #[case::nested_order(
        r#"{"b":{"d":1,"c":2},"a":{"f":3,"e":4}}"#,
        r#"{"a":{"e":4,"f":3},"b":{"c":2,"d":1}}"#
    )]
    #[case::names_by_prefix(r#"{"ab":1,"a":2,"":3}"#, r#"{"":3,"a":2,"ab":1}"#)]
    #[case::scalar("\"a\"", "\"a\"")]
    #[case::escapes_that_need_none(r#""\u0061\/\u007f""#, "\"a/\u{7f}\"")]
    fn canonical_forms(#[case] text: &str, #[case] want: &str) {
        assert_eq!(canonical(text).as_deref(), Some(want));
    }

    #[rstest]
    #[case::one(&["1", "1.0", "1e0", "10e-1", "1E+0", "0.1e1"], "1")]
    #[case::zero(&["0", "-0", "0.0", "-0.0", "0e9", "-0e-9"], "0")]
    #[case::just_exact(&["9007199254740992", "9007199254740992.0"], "9007199254740992")]
    #[case::large(&["9007199254740993"], "9007199254740993")]
    #[case::large_negative(&["-9007199254740993"], "-9007199254740993")]
    #[case::beyond_64_bits(&["18446744073709551617"], "18446744073709551617")]
    #[case::beyond_in_a_fraction(&["9007199254740993.0", "90071992547409930e-1"], "9007199254740993")]
    #[case::beyond_with_a_half(&["9007199254740992.5", "90071992547409925e-1"], "90071992547409925e-1")]
    #[case::negative_beyond(&["-9007199254740993.0"], "-9007199254740993")]
    #[case::more_digits_than_a_double(&["0.1000000000000000055511151231257827"], "1000000000000000055511151231257827e-34")]
    #[case::a_tenth(&["0.1", "0.10", "1e-1", "100E-3"], "0.1")]
    #[case::a_price(&["19.99", "1.999e1", "19.9900"], "19.99")]
    #[case::large_exact_double(&["1.5e300", "15e299"], "1.5e+300")]
    #[case::large_inexact_double(&["1.23456789012345678901e25"], "12345678901234567890100000")]
    #[case::exponent(&["1e21", "1000e18"], "1e+21")]
    #[case::digits_of_an_integer_stay(&["1000000000000000000000"], "1000000000000000000000")]
    #[case::smallest(&["5e-324", "50e-325"], "5e-324")]
    #[case::next_to_the_smallest(&["4.9e-324", "49e-325"], "49e-325")]
    #[case::largest(&["1.7976931348623157e308"], "1.7976931348623157e+308")]
    #[case::underflow(&["1e-400", "0.1e-399"], "1e-400")]
    #[case::negative_underflow(&["-1e-400"], "-1e-400")]
    #[case::zero_of_any_exponent(&["0e99999999999999999999", "-0.00e-99999999999999999999"], "0")]
    fn numbers(#[case] texts: &[&str], #[case] want: &str) {
        for text in texts {
            assert_eq!(canonical(text).as_deref(), Some(want), "{text}");
        }
    }

    #[rstest]
    #[case::duplicate(r#"{"a":1,"a":1}"#)]
    #[case::duplicate_after_unescaping(r#"{"a":1,"b":2,"\u0061":1}"#)]
    #[case::duplicate_within(r#"[{"a":{"b":1,"b":2}}]"#)]
    #[case::nothing("")]
    #[case::only_space("  ")]
    #[case::two_values("1 2")]
    #[case::trailing_comma("[1,]")]
    #[case::leading_comma("[,1]")]
    #[case::no_comma(r#"{"a":1 "b":2}"#)]
    #[case::comma_before_end(r#"{"a":1,}"#)]
    #[case::no_colon(r#"{"a" 1}"#)]
    #[case::name_without_quotes("{a:1}")]
    #[case::wrong_bracket("[1}")]
    #[case::open_array("[1")]
    #[case::open_object(r#"{"a":1"#)]
    #[case::open_string("\"a")]
    #[case::open_escape("\"a\\")]
    #[case::unknown_escape(r#""\x""#)]
    #[case::escaped_umlaut("\"\\ä\"")]
    #[case::control_in_string("\"a\nb\"")]
    #[case::lone_high_surrogate(r#""\ud800""#)]
    #[case::lone_low_surrogate(r#""\udc00""#)]
    #[case::lone_surrogate_in_name(r#"{"\ud800":1}"#)]
    #[case::surrogates_in_disorder(r#""\udc00\ud800""#)]
    #[case::leading_zero("01")]
    #[case::plus("+1")]
    #[case::bare_minus("-")]
    #[case::no_fraction("1.")]
    #[case::no_integer(".5")]
    #[case::no_exponent("1e")]
    #[case::hexadecimal("0x10")]
    #[case::not_a_number("NaN")]
    #[case::infinite("1e400")]
    #[case::exponent_beyond_measure("1e-99999999999999999999")]
    #[case::comment("1 // one")]
    #[case::byte_order_mark("\u{feff}1")]
    #[case::other_space("\u{a0}1")]
    #[case::capital("True")]
    fn without_a_canonical_form(#[case] text: &str) {
        assert_eq!(canonical(text), None);
    }

    #[test]
    fn bytes_that_are_not_utf_8_have_no_form() {
        assert_eq!(canonical_json(b"\"\xff\""), None);
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(canonical(&nested(DEPTH_MAX)).is_some());
        assert_eq!(canonical(&nested(DEPTH_MAX + 1)), None);
        assert_eq!(canonical(&"[".repeat(1_000_000)), None);
    }

    /// Documents whose numbers RFC 8785 can represent. Names are few, so that many
    /// are equal.
    fn document() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-(1_i64 << 53)..=1 << 53).prop_map(Value::from),
            any::<f64>()
                .prop_filter("finite", |f| f.is_finite())
                .prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map("[a-cé\u{e000}\u{10000}\"]{0,3}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_reference_implementation_agrees(document in document()) {
            let want = serde_json_canonicalizer::to_vec(&document).expect("finite numbers");
            let text = serde_json::to_vec(&document).expect("a document");
            let pretty = serde_json::to_vec_pretty(&document).expect("a document");
            prop_assert_eq!(canonical_json(&text), Some(want.clone()));
            prop_assert_eq!(canonical_json(&pretty), Some(want.clone()));
            prop_assert_eq!(canonical_json(&want), Some(want), "canonical already");
        }

        #[test]
        fn a_canonical_form_is_json_with_the_same_meaning(
            text in "[\\[\\]{}:,\" 0-2.eE+\\\\u\\-tna]{0,24}",
        ) {
            let parsed = serde_json::from_str::<Value>(&text);
            if let Some(canonical) = canonical_json(text.as_bytes()) {
                let again: Value = serde_json::from_slice(&canonical).expect("still JSON");
                let parsed = parsed.expect("it was JSON");
                prop_assert_eq!(
                    serde_json_canonicalizer::to_vec(&parsed).ok(),
                    serde_json_canonicalizer::to_vec(&again).ok()
                );
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in any::<Vec<u8>>()) {
            let _form = canonical_json(&bytes);
        }

        #[test]
        fn different_integers_differ(a in "-?[1-9][0-9]{0,40}", b in "-?[1-9][0-9]{0,40}") {
            prop_assume!(a != b);
            prop_assert_ne!(canonical(&a), canonical(&b));
            prop_assert_ne!(canonical(&a), canonical(&format!("\"{a}\"")));
        }

        /// Numbers have the same canonical form only if their values are equal.
        #[test]
        fn numbers_have_one_form_only_if_their_values_are_equal(
            (a, shift) in ("[1-9][0-9]{0,24}", -30_i64..30),
            near in -2_i128..=2,
            zeros in 0_usize..4,
        ) {
            let digits: i128 = a.parse().expect("a number");
            prop_assume!(digits + near > 0);
            let one = format!("{digits}e{shift}");
            let other = format!("{}{}e{}", digits + near, "0".repeat(zeros), shift - zeros as i64);
            prop_assert_eq!(canonical(&one) == canonical(&other), near == 0, "{} {}", one, other);
        }

        #[test]
        fn large_neighbouring_integers_differ(n in (1_u64 << 53)..u64::MAX) {
            let [n, next] = [n.to_string(), (n + 1).to_string()];
            prop_assert_ne!(canonical(&n), canonical(&next));
        }
    }
}
