//! Tensor views: sizes are checked, parts share bytes.

use kvant_model::{DType, LoadErrorKind, Tensor};

fn counting(shape: Vec<usize>) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
    Tensor::from_f32("t", shape, &values).unwrap()
}

#[test]
fn sizes_are_checked_without_overflow() {
    assert_eq!(DType::Q4_K.row_bytes(512), Some(288));
    assert_eq!(DType::Q4_K.row_bytes(100), None);
    assert_eq!(DType::F32.tensor_bytes(&[usize::MAX, 2]), None);
    assert_eq!(DType::Q8_0.tensor_bytes(&[1 << 40, 1 << 40]), None);
    assert_eq!(DType::F32.tensor_bytes(&[1 << 62, 1]), None);
    assert_eq!(DType::F32.tensor_bytes(&[]), Some(4));
    assert_eq!(DType::F32.tensor_bytes(&[0, 7]), Some(0));
    assert!(Tensor::new("t", DType::Q4_0, vec![2, 32], vec![0; 35].into()).is_err());
    assert!(Tensor::new("t", DType::Q4_0, vec![2, 16], vec![0; 18].into()).is_err());
}

#[test]
fn rows_and_parts() {
    let tensor = counting(vec![4, 3, 2]);
    assert_eq!((tensor.rows(), tensor.columns(), tensor.len()), (12, 2, 24));
    let mut row = [0.0; 2];
    tensor.row_f32(5, &mut row).unwrap();
    assert_eq!(row, [10.0, 11.0]);
    let expert = tensor.index(2).unwrap();
    assert_eq!(expert.shape(), [3, 2]);
    assert_eq!(expert.to_f32().unwrap(), [12.0, 13.0, 14.0, 15.0, 16.0, 17.0]);
    let part = tensor.narrow(1..3).unwrap();
    assert_eq!(part.shape(), [2, 3, 2]);
    assert_eq!(part.to_f32().unwrap()[0], 6.0);
    assert_eq!(counting(vec![6]).narrow(2..5).unwrap().to_f32().unwrap(), [2.0, 3.0, 4.0]);
    assert_eq!(tensor.reshape(vec![8, 3]).unwrap().rows(), 8);
}

#[test]
fn parts_that_do_not_exist_are_refused() {
    let tensor = counting(vec![4, 2]);
    for error in [
        tensor.narrow(3..5).unwrap_err(),
        tensor.index(4).unwrap_err(),
        tensor.index(usize::MAX).unwrap_err(),
        tensor.expect_shape(&[2, 4]).unwrap_err(),
        counting(vec![4]).index(0).unwrap_err(),
        tensor.to_i64().unwrap_err(),
    ] {
        assert_eq!(error.kind(), LoadErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains("\"t\""), "{error}");
    }
    assert!(tensor.reshape(vec![3, 3]).is_err());
    // A part of a row of blocks starts and ends with a block.
    let packed = Tensor::new("q", DType::Q8_0, vec![64], vec![0; 68].into()).unwrap();
    assert_eq!(packed.narrow(32..64).unwrap().len(), 32);
    assert!(packed.narrow(16..48).is_err());
    assert!(packed.narrow(32..48).is_err());
}

#[test]
fn integers_are_not_weights() {
    let bytes: Vec<u8> = [-1i64, 7].iter().flat_map(|v| v.to_le_bytes()).collect();
    let tensor = Tensor::new("ids", DType::I64, vec![2], bytes.into()).unwrap();
    assert_eq!(tensor.to_i64().unwrap(), [-1, 7]);
    assert!(tensor.to_f32().is_err());
}
