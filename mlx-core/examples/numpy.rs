//! What one writes with NumPy, line by line.

use mlx_core::{
    Array, DType, NewAxis, Result, arange, array, concat, einsum, fft, linalg, linspace, stack,
    step, where_,
};

fn main() -> Result<()> {
    let a = arange(0, 12, 1, DType::F32)?.reshape((3, 4))?; // np.arange(12.0).reshape(3, 4)
    let v = array![1.0f32, 2.0, 3.0, 4.0]; // np.array([1., 2., 3., 4.])
    println!("{}", ((&a * 2.0)? + &v)?); // a * 2 + v
    println!("{}", (1.0 / &v)?); // 1 / v
    println!("{}", a.matmul(&v)?); // a @ v
    println!("{}", a.i((1, ..))?); // a[1]
    println!("{}", a.i((.., -1))?); // a[:, -1]
    println!("{}", a.i((0..2, 1..3))?); // a[0:2, 1:3]
    println!("{}", a.i((0, step(.., -2)))?); // a[0, ::-2]
    println!("{:?}", v.i((.., NewAxis))?.shape()); // v[:, None].shape
    println!("{}", a.i(&array![2, 0])?.i((.., 0))?); // a[[2, 0]][:, 0]
    println!("{}", a.set((0, ..), 9)?.i((.., 0))?); // a[0] = 9 (a new array here)
    println!("{}", v.at(&array![0, 0]).add(5)?); // np.add.at(v, [0, 0], 5)
    println!("{}", v.masked_select(&v.gt(2)?)?); // v[v > 2]
    println!("{}", where_(&v.gt(2)?, &v, 0)?); // np.where(v > 2, v, 0)
    println!("{}", a.sum_all()?); // a.sum()
    println!("{}", a.mean(0, false)?); // a.mean(axis=0)
    println!("{:?}", a.max(1, true)?.shape()); // a.max(axis=1, keepdims=True).shape
    println!("{}", a.argmax(1, false)?); // a.argmax(axis=1)
    println!("{}", v.cumsum(0)?); // np.cumsum(v)
    println!("{}", array![3, 1, 2].sort(-1)?); // np.sort([3, 1, 2])
    println!("{}", concat(&[&v, &v], 0)?.i(3..6)?); // np.concatenate([v, v])[3:6]
    println!("{:?}", stack(&[&v, &v], 0)?.shape()); // np.stack([v, v]).shape
    println!("{:?}", a.t()?.shape()); // a.T.shape
    println!("{}", linspace(0, 1, 5, DType::F32)?); // np.linspace(0, 1, 5)
    println!("{}", Array::eye(2, DType::I32)?); // np.eye(2, dtype=int)
    println!("{}", einsum("ij,j->i", &[&a, &v])?); // np.einsum("ij,j->i", a, v)
    println!("{}", linalg::norm(&array![3.0f32, 4.0])?); // np.linalg.norm([3., 4.])
    println!("{}", fft::fft(&v)?.real()?); // np.fft.fft(v).real
    println!("{}", v.astype(DType::I32)?); // v.astype(int)
    println!("{}", a.eq(&a)?.all_all()?); // (a == a).all()
    let total: f32 = v.sum_all()?.item()?; // float(v.sum())
    let rows: Vec<Vec<f32>> = a.to_vec2()?; // a.tolist()
    println!("{total} {:?}", rows[2]);
    Ok(())
}
