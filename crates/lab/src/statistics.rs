//! The middle of some figures, and their tails.

/// The middle value, or the mean of the two in the middle; NaN of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(middle)) {
        (_, None) => f64::NAN,
        (1, Some(value)) => *value,
        (_, Some(value)) => f64::midpoint(sorted[middle - 1], *value),
    }
}

/// The value that `share` of all are not above, by the nearest rank; NaN of nothing.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rank among values that are in memory"
)]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let value = sorted.get(rank.saturating_sub(1)).or_else(|| sorted.last());
    value.copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-12, "{left} {right}");
    }

    #[test]
    fn median_is_in_the_middle() {
        same(median(&[3.0, 1.0, 2.0]), 2.0);
        same(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn quantile_is_the_nearest_rank() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        same(quantile(&values, 0.99), 198.0);
        same(quantile(&values, 0.5), 100.0);
        same(quantile(&values, 1.0), 200.0);
        same(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.99).is_nan());
    }
}
