/* DESIGN: written by hand, because axes, ticks and two lines are all it takes. Colours are classes
 * with a second set for dark schemes; lines differ in dash and marker, too, so that the picture
 * survives grey printing. */
#include "server/bench/plot.h"

#include "server/bench/report.h"

#include <math.h>

enum {
    PANEL_W = 300,
    PANEL_H = 220,
    LEFT = 64,
    GAP = 74,
    TOP = 74,
    BOTTOM = 52,
    RIGHT = 24,
    PANELS = 3,
    WIDTH = LEFT + PANELS * PANEL_W + (PANELS - 1) * GAP + RIGHT,
    HEIGHT = TOP + PANEL_H + BOTTOM,
};

static const char style[] =
    "<style>\n"
    "  text { font: 12px system-ui, sans-serif; fill: #30363d; }\n"
    "  .title { font-size: 15px; font-weight: 600; } .panel { font-weight: 600; }\n"
    "  .back { fill: #ffffff; } .grid { stroke: #d8dee4; } .axis { stroke: #6e7781; }\n"
    "  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }\n"
    "  .p50 { stroke: #0b63c4; } .p95 { stroke: #c2500a; stroke-dasharray: 6 4; }\n"
    "  .p50m { fill: #0b63c4; } .p95m { fill: #c2500a; }\n"
    "  @media (prefers-color-scheme: dark) {\n"
    "    text { fill: #d0d7de; } .back { fill: #0d1117; } .grid { stroke: #2a313a; }\n"
    "    .axis { stroke: #8b949e; } .p50 { stroke: #58a6ff; } .p95 { stroke: #ffa657; }\n"
    "    .p50m { fill: #58a6ff; } .p95m { fill: #ffa657; }\n"
    "  }\n"
    "</style>\n";

/* 1, 2 or 5 times a power of ten, so that 3 to 6 steps cover `top`. */
static double nice_step(double top)
{
    double power = pow(10, floor(log10(top / 5)));
    double share = top / 5 / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

struct axis {
    double step, top; /* from 0 to top, a multiple of step */
};

static struct axis make_axis(double largest)
{
    struct axis a;
    a.step = nice_step(largest > 0 ? largest : 1);
    a.top = a.step * ceil((largest > 0 ? largest : 1) / a.step - 1e-9);
    return a;
}

static const struct samples_stats *stats_of(const struct report *r, int panel)
{
    return panel == 0 ? &r->ttft : panel == 1 ? &r->tpot : &r->e2e;
}

static double load_of(const struct report *r)
{
    return r->rate > 0 ? r->rate : r->concurrency;
}

static bool is_drawn(const struct report *r, int panel)
{
    return stats_of(r, panel)->count > 0 && !isinf(load_of(r));
}

struct panel {
    int32_t left;
    struct axis x, y;
};

static double at_x(const struct panel *p, double v)
{
    return p->left + PANEL_W * v / p->x.top;
}

static double at_y(const struct panel *p, double v)
{
    return TOP + PANEL_H * (1 - v / p->y.top);
}

static void label(struct buf *out, double x, double y, const char *anchor, double value)
{
    buf_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%.6g</text>\n", x, y, anchor,
               value);
}

static void draw_axes(const struct panel *p, struct buf *out)
{
    for (int i = 0; p->y.step * i <= p->y.top * (1 + 1e-9); i++) {
        double y = at_y(p, p->y.step * i);
        buf_printf(out, "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/>\n",
                   p->left, y, p->left + PANEL_W, y);
        label(out, p->left - 8, y + 4, "end", p->y.step * i);
    }
    for (int i = 0; p->x.step * i <= p->x.top * (1 + 1e-9); i++) {
        double x = at_x(p, p->x.step * i);
        buf_printf(out, "<line class=\"axis\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>\n", x,
                   TOP + PANEL_H, x, TOP + PANEL_H + 5);
        label(out, x, TOP + PANEL_H + 19, "middle", p->x.step * i);
    }
    buf_printf(out, "<path class=\"axis\" fill=\"none\" d=\"M%d %dV%dH%d\"/>\n", p->left, TOP,
               TOP + PANEL_H, p->left + PANEL_W);
}

static void draw_line(const struct panel *p, int panel, const struct report *rounds, int32_t count,
                      bool p95, struct buf *out)
{
    const char *name = p95 ? "p95" : "p50";
    char letter = 'M';
    buf_printf(out, "<path class=\"line %s\" d=\"", name);
    for (int32_t i = 0; i < count; i++) {
        const struct samples_stats *s = stats_of(&rounds[i], panel);
        if (!is_drawn(&rounds[i], panel))
            continue;
        buf_printf(out, "%c%.1f %.1f", letter, at_x(p, load_of(&rounds[i])),
                   at_y(p, p95 ? s->p95 : s->p50));
        letter = 'L';
    }
    buf_puts(out, "\"/>\n");
    for (int32_t i = 0; i < count; i++) {
        const struct samples_stats *s = stats_of(&rounds[i], panel);
        if (!is_drawn(&rounds[i], panel))
            continue;
        double x = at_x(p, load_of(&rounds[i])), y = at_y(p, p95 ? s->p95 : s->p50);
        if (p95)
            buf_printf(out,
                       "<rect class=\"p95m\" x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"/>\n",
                       x - 3.5, y - 3.5);
        else
            buf_printf(out, "<circle class=\"p50m\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", x, y);
    }
}

static void draw_panel(int panel, const struct report *rounds, int32_t count, struct buf *out)
{
    static const char *const names[PANELS] = {
        "TTFT, ms (first token)", "TPOT, ms (each further token)", "E2E, ms (last token)"};
    double load_max = 0, value_max = 0;
    bool closed = count > 0 && rounds[0].rate <= 0;
    for (int32_t i = 0; i < count; i++)
        if (is_drawn(&rounds[i], panel)) {
            load_max = fmax(load_max, load_of(&rounds[i]));
            value_max = fmax(value_max, stats_of(&rounds[i], panel)->p95);
        }
    struct panel p = {.left = LEFT + panel * (PANEL_W + GAP),
                      .x = make_axis(load_max),
                      .y = make_axis(value_max)};
    buf_printf(out, "<text class=\"panel\" x=\"%d\" y=\"%d\">%s</text>\n", p.left, TOP - 14,
               names[panel]);
    draw_axes(&p, out);
    buf_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
               p.left + PANEL_W / 2, HEIGHT - 12,
               closed ? "requests at once" : "requests/s offered");
    draw_line(&p, panel, rounds, count, true, out);
    draw_line(&p, panel, rounds, count, false, out);
}

static void write_escaped(const char *s, struct buf *out)
{
    for (; *s; s++)
        if (*s == '&')
            buf_puts(out, "&amp;");
        else if (*s == '<')
            buf_puts(out, "&lt;");
        else
            buf_add(out, s, 1);
}

static void draw_legend(struct buf *out)
{
    const int x = WIDTH - RIGHT - 150, y = 26;
    buf_printf(out, "<path class=\"line p50\" d=\"M%d %dh34\"/>\n", x, y);
    buf_printf(out, "<circle class=\"p50m\" cx=\"%d\" cy=\"%d\" r=\"4\"/>\n", x + 17, y);
    buf_printf(out, "<text x=\"%d\" y=\"%d\">p50</text>\n", x + 40, y + 4);
    buf_printf(out, "<path class=\"line p95\" d=\"M%d %dh34\"/>\n", x + 84, y);
    buf_printf(out, "<rect class=\"p95m\" x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"/>\n",
               x + 97.5, y - 3.5);
    buf_printf(out, "<text x=\"%d\" y=\"%d\">p95</text>\n", x + 124, y + 4);
}

void plot_svg(const struct report *rounds, int32_t count, const char *title, struct buf *out)
{
    buf_printf(out,
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
               "height=\"%d\" role=\"img\">\n<title>",
               WIDTH, HEIGHT, WIDTH, HEIGHT);
    write_escaped(title, out);
    buf_puts(out, "</title>\n");
    buf_puts(out, style);
    buf_puts(out, "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n");
    buf_printf(out, "<text class=\"title\" x=\"%d\" y=\"30\">", LEFT);
    write_escaped(title, out);
    buf_puts(out, "</text>\n");
    draw_legend(out);
    for (int panel = 0; panel < PANELS; panel++)
        draw_panel(panel, rounds, count, out);
    buf_puts(out, "</svg>\n");
}
