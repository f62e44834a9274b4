//! Parameters that a file gives layer by layer.

use super::{Key, MAX_SIZE, ModelConfig, Setting, list, number};
use crate::error::Result;

/// Layers up to which one number is spread over all of them.
const MAX_LAYERS: usize = 1 << 16;

fn whole(item: Setting, least: f64) -> Option<usize> {
    let n = number(item)?;
    (n.fract() == 0.0 && (least..=MAX_SIZE as f64).contains(&n)).then_some(n as usize)
}

impl ModelConfig<'_> {
    /// A truth value per layer, where the file has a list of them; 1 and 0 say the same.
    pub fn layer_flags(&self, key: Key, layers: usize) -> Result<Option<Vec<bool>>> {
        self.layer_list(key, layers, "true or false", |item| match item {
            Setting::Flag(flag) => Some(flag),
            item => whole(item, 0.0).filter(|&n| n <= 1).map(|n| n == 1),
        })
    }

    /// A count per layer, where GGUF metadata has a list of them; zero in layers without the part it counts.
    pub fn layer_counts(&self, key: Key, layers: usize) -> Result<Option<Vec<usize>>> {
        self.layer_list(key, layers, "a whole number from 0 to 16777216", |item| whole(item, 0.0))
    }

    /// The first `layers` items of a list; GGUF files count layers behind the last that predict further tokens.
    fn layer_list<T>(
        &self,
        key: Key,
        layers: usize,
        wanted: &str,
        convert: impl Fn(Setting) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let wanted = format!("a list of {layers} items or more, each of them {wanted},");
        let list = self.get(key, &wanted, |setting| match setting {
            Setting::List(items) if items.len() >= layers => {
                items.into_iter().take(layers).map(convert).collect::<Option<Vec<T>>>().map(Some)
            }
            Setting::List(_) => None,
            _ => Some(None),
        })?;
        Ok(list.flatten())
    }

    /// A size for each layer, which must be there: a list of them, or one for all.
    pub fn layer_sizes(&self, key: Key, layers: usize) -> Result<Vec<usize>> {
        self.layer_sizes_if(key, layers)?.ok_or_else(|| self.missing(key))
    }

    /// The same where it may be absent.
    pub fn layer_sizes_if(&self, key: Key, layers: usize) -> Result<Option<Vec<usize>>> {
        let wanted =
            format!("a whole number from 1 to {MAX_SIZE}, or a list of {layers} such numbers or more");
        self.get(key, &wanted, |setting| match setting {
            Setting::List(items) if items.len() >= layers => {
                items.into_iter().take(layers).map(|item| whole(item, 1.0)).collect()
            }
            // Made as long as the model is deep, which nothing has confirmed yet.
            one if layers <= MAX_LAYERS => Some(vec![whole(one, 1.0)?; layers]),
            _ => None,
        })
    }

    /// A number for each layer, which may be infinite.
    pub fn layer_numbers(&self, key: Key, layers: usize) -> Result<Option<Vec<f64>>> {
        self.get(key, &format!("a list of {layers} numbers or more"), |setting| {
            let items = list(setting).filter(|items| items.len() >= layers)?;
            items.into_iter().take(layers).map(|item| number(item).filter(|n| !n.is_nan())).collect()
        })
    }
}
