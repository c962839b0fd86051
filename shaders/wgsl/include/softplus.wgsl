// ln(1 + e^x): the larger of x and 0, and ln(1 + e) of an e below 1, by the series of the inverse
// hyperbolic tangent at e / (2 + e), which is below 1/3.
fn softplus(x: f32) -> f32 {
    let e = exp_of(-abs(x));
    let s = e / (2.0 + e);
    let square = s * s;
    var series = 1.0 / 17.0;
    series = fma(series, square, 1.0 / 15.0);
    series = fma(series, square, 1.0 / 13.0);
    series = fma(series, square, 1.0 / 11.0);
    series = fma(series, square, 1.0 / 9.0);
    series = fma(series, square, 1.0 / 7.0);
    series = fma(series, square, 1.0 / 5.0);
    series = fma(series, square, 1.0 / 3.0);
    let near = 2.0 * fma(series * square, s, s);
    return unless_nan(x, max(x, 0.0) + near);
}
