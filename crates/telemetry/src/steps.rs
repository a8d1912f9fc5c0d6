//! [`Steps`]: the log-linear scale of our distributions: 2^`BITS` cells for each power of two, over all of `u64`.

/// The scale; the greatest error of a quantile is one part in 2^`BITS`.
pub struct Steps<const BITS: u32>;

impl<const BITS: u32> Steps<BITS> {
    const EACH: usize = 1 << BITS;
    /// Cells of the whole scale.
    pub const CELLS: usize = (64 - BITS as usize + 1) * Self::EACH;

    /// The cell of a value.
    pub fn cell_of(value: u64) -> usize {
        if value < Self::EACH as u64 {
            return value as usize;
        }
        let power = 63 - value.leading_zeros();
        let step = (value >> (power - BITS)) as usize & (Self::EACH - 1);
        (power - BITS + 1) as usize * Self::EACH + step
    }

    /// The smallest value of a cell.
    pub fn floor_of(cell: usize) -> u64 {
        if cell < Self::EACH {
            return cell as u64;
        }
        let power = (cell / Self::EACH) as u32 + BITS - 1;
        ((Self::EACH + cell % Self::EACH) as u64) << (power - BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::Steps;

    fn cells_cover_all<const BITS: u32>() {
        for cell in 0..Steps::<BITS>::CELLS {
            let floor = Steps::<BITS>::floor_of(cell);
            assert_eq!(Steps::<BITS>::cell_of(floor), cell);
            if cell > 0 {
                assert!(floor > Steps::<BITS>::floor_of(cell - 1));
                assert_eq!(Steps::<BITS>::cell_of(floor - 1), cell - 1);
            }
        }
        assert_eq!(Steps::<BITS>::cell_of(u64::MAX), Steps::<BITS>::CELLS - 1);
    }

    #[test]
    fn every_value_has_a_cell() {
        cells_cover_all::<2>();
        cells_cover_all::<4>();
    }
}
