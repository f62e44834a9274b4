//! The numbers GGUF files use for tensor types.

use crate::dtype::DType;
use crate::error::{LoadError, Result};

/// Every number ggml has given out, with its name, and our type where we read it.
const TYPES: [(u32, &str, Option<DType>); 42] = [
    (0, "F32", Some(DType::F32)),
    (1, "F16", Some(DType::F16)),
    (2, "Q4_0", Some(DType::Q4_0)),
    (3, "Q4_1", Some(DType::Q4_1)),
    (4, "Q4_2", None),
    (5, "Q4_3", None),
    (6, "Q5_0", Some(DType::Q5_0)),
    (7, "Q5_1", Some(DType::Q5_1)),
    (8, "Q8_0", Some(DType::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", Some(DType::Q2_K)),
    (11, "Q3_K", Some(DType::Q3_K)),
    (12, "Q4_K", Some(DType::Q4_K)),
    (13, "Q5_K", Some(DType::Q5_K)),
    (14, "Q6_K", Some(DType::Q6_K)),
    (15, "Q8_K", Some(DType::Q8_K)),
    (16, "IQ2_XXS", Some(DType::IQ2_XXS)),
    (17, "IQ2_XS", Some(DType::IQ2_XS)),
    (18, "IQ3_XXS", Some(DType::IQ3_XXS)),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", Some(DType::IQ4_NL)),
    (21, "IQ3_S", Some(DType::IQ3_S)),
    (22, "IQ2_S", Some(DType::IQ2_S)),
    (23, "IQ4_XS", Some(DType::IQ4_XS)),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", Some(DType::I32)),
    (27, "I64", Some(DType::I64)),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(DType::BF16)),
    (31, "Q4_0_4_4", None),
    (32, "Q4_0_4_8", None),
    (33, "Q4_0_8_8", None),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (36, "IQ4_NL_4_4", None),
    (37, "IQ4_NL_4_8", None),
    (38, "IQ4_NL_8_8", None),
    (39, "MXFP4", Some(DType::MXFP4)),
    (40, "NVFP4", Some(DType::NVFP4)),
    (41, "Q1_0", None),
];

/// Our type for a number in a file; types we do not read are refused by name.
pub fn dtype_of(number: u32) -> Result<DType> {
    match TYPES.iter().find(|(n, ..)| *n == number) {
        Some((_, _, Some(dtype))) => Ok(*dtype),
        Some((_, name, None)) => Err(LoadError::unsupported(format!(
            "type {name} is not supported; use a file in one of {}",
            supported()
        ))),
        None => Err(LoadError::unsupported(format!("tensor type number {number} is unknown"))),
    }
}

/// The number of a type; `None` for kvant's own, which have none.
pub fn number_of(dtype: DType) -> Option<u32> {
    TYPES.iter().find(|(_, _, ours)| *ours == Some(dtype)).map(|(number, ..)| *number)
}

fn supported() -> String {
    let names: Vec<&str> = TYPES.iter().filter(|t| t.2.is_some()).map(|t| t.1).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_agrees_with_our_names() {
        for (index, (number, name, dtype)) in TYPES.iter().enumerate() {
            assert_eq!(index as u32, *number);
            if let Some(dtype) = dtype {
                assert_eq!(dtype.name(), *name);
                assert_eq!(number_of(*dtype), Some(*number));
            }
        }
        assert_eq!(number_of(DType::Int4G32), None);
    }

    #[test]
    fn refusals_name_the_type() {
        assert!(dtype_of(19).unwrap_err().to_string().contains("IQ1_S"));
        assert!(dtype_of(34).unwrap_err().to_string().contains("TQ1_0"));
        assert!(dtype_of(4000).unwrap_err().to_string().contains("4000"));
    }
}
