/* DESIGN: what comes before a product of few rows and after it, in one go with it. An op more is a
 * launch more, whose beginning and end take longer than its work: norms and activation took 6.6 of
 * the 120 us of a layer of a decode (tests/bench/RESULTS.md).
 *
 * An activation: a block has the same outputs of gates as of ups, and makes it where it has summed
 * them up. An addition: each result is one thread's, which asks for what y holds before the product
 * begins.
 *
 * A norm: every block has all of x on its way anyway, so it multiplies the gain, adds up the
 * squares, and divides sums by their root in the end, when it is known. That rounds otherwise than
 * a norm of its own does. */
#include "kernels/cuda/gemv_launch.cuh"

/* Rows with a norm. The others: up to GROUP. */
template <typename F> constexpr int NORMED_ROWS = SOME<F, OUTPUTS_OF<F, 1>, true>;

template <typename F> static bool fuses(const struct product &p, const struct linear_fusion &f)
{
    if (F::AT_ONCE == GROUP || p.rows < 1 || p.rows > GROUP || !is_aligned<F>(p) ||
        (uintptr_t)f.gain % CUDA_VECTOR != 0)
        return false;
    return f.gain == nullptr || (F::X_PIECES == 2 && p.rows <= NORMED_ROWS<F>);
}

bool gemv_fuses(const struct weight_spec *s, const struct product *p, const struct linear_fusion *f)
{
    bool does = false;
    with_form(s, *p, [&](auto form) { does = fuses<decltype(form)>(*p, *f); });
    return does;
}

template <typename F, bool NORMED, bool GATED>
static void run(struct cuda_backend *c, const struct product &p, const struct linear_fusion &f)
{
    struct fused<NORMED, GATED> which;
    which.adds = f.end == LINEAR_ADD;
    which.gain = f.gain;
    which.eps = f.eps;
    which.act = f.act;
    launch<F, 1>(c, p, which, p.rows, 1);
}

void gemv_fused(struct cuda_backend *c, const struct weight_spec *s, const struct product *p,
                const struct linear_fusion *f)
{
    CHECK(gemv_fuses(s, p, f));
    with_form(s, *p, [&](auto form) {
        typedef decltype(form) F;
        if constexpr (F::AT_ONCE > GROUP) {
            if constexpr (F::X_PIECES == 2) {
                if (f->gain != nullptr && f->end == LINEAR_ACT)
                    run<F, true, true>(c, *p, *f);
                else if (f->gain != nullptr)
                    run<F, true, false>(c, *p, *f);
            }
            if (f->gain == nullptr && f->end == LINEAR_ACT)
                run<F, false, true>(c, *p, *f);
            else if (f->gain == nullptr)
                gemv_add(c, s, p);
        }
    });
}
