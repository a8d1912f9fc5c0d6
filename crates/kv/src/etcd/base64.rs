//! Base 64 (RFC 4648, section 4), the form of bytes in JSON.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What each byte stands for; 255 for one that is no digit.
const VALUES: [u8; 256] = {
    let mut values = [255; 256];
    let mut i = 0;
    while i < 64 {
        values[DIGITS[i] as usize] = i as u8;
        i += 1;
    }
    values
};

/// Appends `bytes` to `out`, padded.
pub fn encode(bytes: &[u8], out: &mut String) {
    out.reserve(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = 0u32;
        for (i, b) in chunk.iter().enumerate() {
            word |= u32::from(*b) << (16 - 8 * i);
        }
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= chunk.len() { digit as char } else { '=' });
        }
    }
}

/// Reads padded text; `None` if it is not base 64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let padding = bytes.iter().rev().take_while(|b| **b == b'=').count();
    if padding > 2 {
        return None;
    }
    let digits = bytes.get(..bytes.len() - padding)?;
    let mut out = Vec::with_capacity(bytes.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let mut word = 0u32;
        for (i, b) in chunk.iter().enumerate() {
            let value = VALUES[*b as usize];
            if value == 255 {
                return None;
            }
            word |= u32::from(value) << (18 - 6 * i);
        }
        let [_, a, b, c] = word.to_be_bytes();
        match chunk.len() {
            4 => out.extend_from_slice(&[a, b, c]),
            3 => out.extend_from_slice(&[a, b]),
            2 => out.push(a),
            _ => return None,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vectors_of_the_rfc() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, coded) in vectors {
            let mut out = String::new();
            encode(plain.as_bytes(), &mut out);
            assert_eq!(out, coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
        for bad in ["Zg", "Zg=", "Z===", "====", "Zm9v!A==", "Zg==Zg==", "Zm 9"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(bytes: Vec<u8>) {
            let mut out = String::new();
            encode(&bytes, &mut out);
            prop_assert_eq!(decode(&out), Some(bytes));
        }
        #[test]
        fn no_text_is_too_bad(text: String) {
            prop_assert!(decode(&text).is_none() || text.len().is_multiple_of(4));
        }
        /// The last digit before the padding may have bits that count for nothing; all else is coded as it was.
        #[test]
        fn what_can_be_decoded_is_coded_alike(text in "[A-Za-z0-9+/]{0,12}={0,2}") {
            if let Some(bytes) = decode(&text) {
                let mut again = String::new();
                encode(&bytes, &mut again);
                let differ = again.bytes().zip(text.bytes()).filter(|(a, b)| a != b).count();
                prop_assert!(again.len() == text.len() && differ <= usize::from(text.ends_with('=')));
                prop_assert_eq!(decode(&again), Some(bytes));
            }
        }
    }
}
