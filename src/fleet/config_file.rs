//! A configuration as a file that another process of the group reads: TOML, every key written out.

use serde_json::Value;

use crate::config::Config;

/// The text of such a file. What `config` holds was read from TOML, so all of it can be written as TOML.
pub fn to_toml(config: &Config) -> String {
    let Ok(Value::Object(sections)) = serde_json::to_value(config) else {
        unreachable!("a configuration is sections of keys");
    };
    let mut text = String::new();
    for (section, keys) in &sections {
        text.push_str(&format!("[{section}]\n"));
        let Value::Object(keys) = keys else { continue };
        for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
            text.push_str(&format!("{key} = {}\n", inline(value)));
        }
    }
    text
}

/// A value on one line. Strings, numbers, flags and lists are written as in JSON; tables are not.
fn inline(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Value::Object(keys) => {
            let set = keys.iter().filter(|(_, value)| !value.is_null());
            let set = set.map(|(key, value)| format!("{key} = {}", inline(value)));
            format!("{{ {} }}", set.collect::<Vec<_>>().join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layers, load};

    #[test]
    fn what_was_written_is_read_again() {
        let set = ["group.name=a-b", "l1.free_room=off", "l2.tile_pages=4", "cache.write_policy=write_back"];
        let set = set.map(str::to_owned).to_vec();
        let mut config = load(&Layers { set, ..Layers::default() }).unwrap();
        config.rank.pool_folder = "/dev/shm/with \"quotes\"".into();
        config.model.components[0].page_bytes = vec![16, 0, 32, 48];
        let path = std::env::temp_dir().join(format!("hicached-config-{}.toml", uuid::Uuid::new_v4().simple()));
        std::fs::write(&path, to_toml(&config)).unwrap();
        let read = load(&Layers { file: Some(path.clone()), ..Layers::default() });
        std::fs::remove_file(&path).unwrap();
        assert_eq!(format!("{:?}", read.unwrap()), format!("{config:?}"));
    }
}
