use super::*;
use serde_json::Value;

fn indices(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|index| index.as_i64().unwrap()).collect()
}

#[test]
fn token_indices_are_accepted_and_refused_as_the_vectors_say() {
    let vectors: Value = serde_json::from_str(include_str!("../../../tests/data/alignment.json")).unwrap();
    let page_tokens = vectors["page_tokens"].as_u64().unwrap() as u32;
    for row in vectors["accepted"].as_array().unwrap() {
        let expected = indices(&row["pages"]).into_iter().map(|page| TokenPage(page as u32)).collect();
        assert_eq!(pages_of_tokens(&indices(&row["token_indices"]), page_tokens), Ok(expected));
    }
    let refused: Vec<_> = vectors["refused"].as_array().unwrap().iter().collect();
    assert_eq!(refused.len(), 8);
    for row in refused {
        let why = row["why"].as_str().unwrap();
        let error = match why {
            "partial group" => PagesError::Partial { position: 0, value: 0, tokens: 63, page_tokens },
            "misaligned start" => PagesError::Misaligned { position: 0, value: 1, page_tokens },
            "not contiguous inside a page" => PagesError::NotContiguous { position: 32, value: 64, expected: 32 },
            "descending" => PagesError::Misaligned { position: 0, value: 63, page_tokens },
            "repeated token" => PagesError::NotContiguous { position: 1, value: 0, expected: 1 },
            "negative" => PagesError::Negative { position: 0, value: -64 },
            "second group partial" => PagesError::Partial { position: 64, value: 128, tokens: 32, page_tokens },
            "same page twice" => PagesError::PageTwice { position: 64, value: 0, page: TokenPage(0) },
            unknown => panic!("the vectors refuse for a new reason: {unknown}"),
        };
        assert_eq!(pages_of_tokens(&indices(&row["token_indices"]), page_tokens), Err(error), "{why}");
    }
}

#[test]
fn a_page_size_that_no_group_has_is_refused() {
    for page_tokens in [0, 8, 48, 1024] {
        assert_eq!(pages_of_tokens(&[], page_tokens), Err(PagesError::PageTokens { page_tokens }));
    }
}

#[test]
fn the_last_page_that_32_bits_name_is_accepted_and_the_next_refused() {
    let first_token = i64::from(u32::MAX) * 16;
    let last_page: Vec<i64> = (first_token..first_token + 16).collect();
    assert_eq!(pages_of_tokens(&last_page, 16), Ok(vec![TokenPage(u32::MAX)]));
    for value in [first_token + 16, i64::MAX - 15] {
        let behind: Vec<i64> = (0..16).map(|offset| value + offset).collect();
        assert_eq!(pages_of_tokens(&behind, 16), Err(PagesError::OutOfRange { position: 0, value }));
    }
}

#[test]
fn a_descent_inside_a_later_page_is_named_where_it_stands() {
    let mut tokens: Vec<i64> = (0..48).collect();
    tokens.swap(40, 41);
    let error = PagesError::NotContiguous { position: 40, value: 41, expected: 40 };
    assert_eq!(pages_of_tokens(&tokens, 16), Err(error));
    assert_eq!(error.to_string(), "token index 41 at position 40 stands where 40 continues the page");
}
