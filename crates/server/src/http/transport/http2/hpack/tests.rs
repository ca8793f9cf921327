//! The examples of RFC 7541, appendix C, and malformed blocks.

use super::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter(|digit| !digit.is_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap()).collect()
}

fn show(field: &Field) -> String {
    match field {
        Field::Method(method) => format!(":method={method}"),
        Field::Scheme(scheme) => format!(":scheme={scheme}"),
        Field::Authority(authority) => format!(":authority={authority}"),
        Field::Path(path) => format!(":path={path}"),
        Field::Header(name, value) => format!("{name}={}", value.as_bytes().escape_ascii()),
        Field::Invalid => "invalid".to_owned(),
    }
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, CompressionError> {
    let mut fields = Vec::new();
    decoder.decode(block, |field, _| fields.push(show(field)))?;
    Ok(fields)
}

#[test]
fn examples_of_requests_are_decoded() {
    const FIRST: [&str; 4] = [":method=GET", ":scheme=http", ":path=/", ":authority=www.example.com"];
    let plain = [
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    ];
    let compressed = [
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ];
    for blocks in [plain, compressed] {
        let mut decoder = Decoder::default();
        assert_eq!(decode(&mut decoder, &bytes(blocks[0])).unwrap(), FIRST);
        assert_eq!(decoder.size, 57);
        assert_eq!(
            decode(&mut decoder, &bytes(blocks[1])).unwrap(),
            [&FIRST[..], &["cache-control=no-cache"]].concat()
        );
        assert_eq!(decoder.size, 110);
        let third = [":method=GET", ":scheme=https", ":path=/index.html", FIRST[3], "custom-key=custom-value"];
        assert_eq!(decode(&mut decoder, &bytes(blocks[2])).unwrap(), third);
        assert_eq!(decoder.size, 164);
    }
}

/// The compressed text was made by another implementation.
#[test]
fn each_byte_is_decompressed() {
    let text = "ffc7fffd8fffffe2fffffe3fffffe4fffffe5fffffe6fffffe7fffffe8ffffeafffffff3fffffa7fffffabffffffdfffffebfffffecfffffedfffffeefffffefffffff0ffffff1ffffff2fffffffbfffffcffffffd3fffffd7fffffdbfffffdffffffe3fffffe7fffffebfffffed4fe3f9ffaffcabf1febfafefe7fdfd2cbb00089969b71d79fb9f7fff20ffbff3ff50ddbd7f061c58f265cd9f469d5af66dddbf871e5f9cff7ff7fffc3ff9ffe45fff4719242cb34e6e9d68a6a3d7dac426defe3cfaf7fffbfe7ffbffdffffffcfffe6ffff4bfff9ffffa3fffd3ffff53fffd5ffffb3fffeb7fffdaffffb7ffff73fffeeffffdeffffebffffbfffffd9ffffdbfffebffffe0ffffeeffffc3ffff8bffff1ffffe4fffee7fffb1ffff97fffd9ffffcdffff9fffffbffffdafffeeffff4ffffb7fffee7fffe8ffffd3fffdeffffd5fffeeffffbdffffe1fffdfffff7fffff5ffffecffff07fff87fffe0ffff17fffedffff87ffff77fffeffffeaffff8bfffe3ffff93ffff87fffcbffff37ffff1fffff83ffffe1fffebfffe3ffff3fffff2ffffa3ffffd9fffff17ffffc7fffff27ffffdefffffbffffff2fffff8fffffb7fff97fff8fffffe6fffffc1fffff87ffffe7fffffc5ffffe5fffe4ffff2fffffd1fffff4ffffffefffffe3fffffc9fffff97fffb3ffffcffffb7fffcdffff4ffff9ffffd1ffffcffffeaffffafffffddffffeffffff4fffff5fffffabffffa7ffffd7fffff9bffffecfffffb7fffff3fffffe8fffffd3fffffabfffff5fffffff7ffffecfffffdbfffffbbfffff7ffffff0fffffbbf";
    assert_eq!(decompress(&bytes(text)), Ok((0..=255).collect()));
    assert_eq!(decompress(b""), Ok(Vec::new()));
    // Padding of eight bits, padding that is not set, the end of the text as a code.
    for wrong in ["ff", "f1e3c2e5f23a6ba0ab90f4ffff", "00", "18", "fffffffc", "ffffffff"] {
        assert_eq!(decompress(&bytes(wrong)), Err(CompressionError), "{wrong}");
    }
}

#[test]
fn table_is_bounded_and_follows_the_clients_size() {
    let mut decoder = Decoder::default();
    let literal = |name: &str, value: &str| {
        [&[0x40, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    for number in 0..1000 {
        decode(&mut decoder, &literal("name", &format!("{number:04}"))).unwrap();
    }
    assert_eq!((decoder.table.len(), decoder.size), (MAX_TABLE as usize / 40, MAX_TABLE as usize / 40 * 40));
    assert_eq!(decode(&mut decoder, &[0xbe]).unwrap(), ["name=0999"]);
    // 80 bytes: two entries.
    assert_eq!(decode(&mut decoder, &[0x3f, 0x31, 0xbf]).unwrap(), ["name=0998"]);
    assert_eq!(decode(&mut decoder, &[0xc0]), Err(CompressionError));
    let long = literal("name", &"x".repeat(60));
    decode(&mut decoder, &long).unwrap();
    assert_eq!((decoder.table.len(), decoder.size), (0, 0), "an entry that is too large empties the table");
    assert_eq!(decode(&mut decoder, &[0x20, 0x3f, 0xe1, 0x1f]).unwrap(), [""; 0], "the largest size");
    assert_eq!(decode(&mut decoder, &[0x3f, 0xe2, 0x1f]), Err(CompressionError), "one more");
}

#[test]
fn malformed_blocks_are_errors_and_malformed_fields_are_reported() {
    for wrong in ["80", "c6", "40", "4003", "40036161", "3fffffffff0f", "ffffffffffff", "8220", "00017f", "008161"] {
        assert_eq!(decode(&mut Decoder::default(), &bytes(wrong)), Err(CompressionError), "{wrong}");
    }
    for block in ["0001410161", "000161010a", "04020a0a", "0100", "0400", "88", "00073a737461747573023130"] {
        assert_eq!(decode(&mut Decoder::default(), &bytes(block)).unwrap(), ["invalid"], "{block}");
    }
}

#[test]
fn what_is_written_can_be_read() {
    let long = "v".repeat(1_000);
    let fields = [("content-type", "application/json"), ("x-empty", ""), ("x-long", &long), (&long, "x")];
    let mut block = Vec::new();
    fields.iter().for_each(|(name, value)| write_field(name.as_bytes(), value.as_bytes(), &mut block));
    let expected: Vec<_> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(decode(&mut Decoder::default(), &block).unwrap(), expected);
    for status in [200, 204, 206, 304, 400, 404, 500, 429] {
        let mut block = Vec::new();
        write_status(StatusCode::from_u16(status).unwrap(), &mut block);
        // The decoder does not know the name, which only responses have.
        let entry = if block.len() == 1 {
            format!(
                "{:02x}",
                0x88 + [200, 204, 206, 304, 400, 404, 500].iter().position(|known| *known == status).unwrap()
            )
        } else {
            format!("0803{:x}", u32::from(b'4') << 16 | u32::from(b'2') << 8 | u32::from(b'9'))
        };
        assert_eq!(block, bytes(&entry));
    }
}
