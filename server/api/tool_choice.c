#include "server/api/tool_choice.h"

#include "server/answer/call.h"

#include <string.h>

static struct field_string string_of(const struct jdoc *v)
{
    if (!v || jdoc_type(v) != JDOC_STRING)
        return (struct field_string){NULL, 0};
    return (struct field_string){jdoc_string(v), jdoc_string_len(v)};
}

/* {"type": "function", "function": {"name": ...}}; an empty string for anything else. */
static struct field_string name_of(const struct jdoc *v)
{
    const struct field_string type = string_of(jdoc_get_value(v, "type"));
    const struct jdoc *function = jdoc_get_value(v, "function");
    if (!type.bytes || !field_string_is(&type, "function") || !function ||
        jdoc_type(function) != JDOC_OBJECT)
        return (struct field_string){NULL, 0};
    return string_of(jdoc_get_value(function, "name"));
}

static bool is_tool(const struct field_string *name, const struct jdoc *tools)
{
    for (size_t i = 0; i < jdoc_size(tools); i++) {
        const struct field_string each = name_of(jdoc_at(tools, i));
        if (each.len == name->len && memcmp(each.bytes, name->bytes, each.len) == 0)
            return true;
    }
    return false;
}

static enum status read_word(const struct jdoc *choice, const char *text, struct tool_choice *out,
                             struct api_error *e)
{
    const struct field_string word = string_of(choice);
    out->calls = !field_string_is(&word, "none");
    out->required = field_string_is(&word, "required");
    if (!out->calls || out->required || field_string_is(&word, "auto"))
        return OK;
    return api_error_field(e, "tool_choice",
                           "tool_choice must be none, auto, required or a function, got %s", text);
}

static enum status read_function(const struct jdoc *choice, const struct jdoc *tools,
                                 const char *text, struct tool_choice *out, struct api_error *e)
{
    const struct field_string name = name_of(choice);
    if (name.len == 0)
        return api_error_field(e, "tool_choice",
                               "tool_choice must be {\"type\": \"function\", \"function\": "
                               "{\"name\": ...}}, got %s",
                               text);
    if (!is_tool(&name, tools)) {
        char shown[80];
        field_text(jdoc_get(jdoc_get(choice, "function"), "name"), shown, sizeof shown);
        return api_error_field(e, "tool_choice", "tool_choice is none of the tools: %s", shown);
    }
    if (!call_is_name(name.bytes, name.len))
        return api_error_field(e, "tool_choice",
                               "tool_choice must name a tool by 1 to %d letters, digits, _ - and "
                               ". to be called, got %s",
                               CALL_NAME_BYTES_MAX, text);
    *out = (struct tool_choice){.calls = true, .required = true, .name = name.bytes};
    return OK;
}

enum status tool_choice_read(const struct jdoc *choice, const struct jdoc *tools,
                             enum answer_calls calls, struct tool_choice *out, struct api_error *e)
{
    enum status st = OK;
    const bool has_tools = tools && jdoc_size(tools) > 0;
    char text[80] = "\"auto\" (which tools stand for)";
    *out = (struct tool_choice){.calls = has_tools, .name = ""};
    if (choice)
        field_text(choice, text, sizeof text);
    if (choice && jdoc_type(choice) == JDOC_STRING)
        TRY(read_word(choice, text, out, e));
    else if (choice && jdoc_type(choice) != JDOC_OBJECT)
        TRY(field_wrong_type("tool_choice", choice, "a string or an object", e));
    if (!has_tools && !out->required && (!choice || jdoc_type(choice) == JDOC_STRING)) {
        out->calls = false; /* of what is there, as it likes */
        return OK;
    }
    if (choice && !has_tools)
        return api_error_field(e, "tool_choice", "tool_choice needs tools");
    if (choice && jdoc_type(choice) == JDOC_OBJECT)
        TRY(read_function(choice, tools, text, out, e));
    if (!out->calls || calls != ANSWER_CALLS_NONE)
        return OK;
    st = api_error_field(e, "tool_choice",
                         "tool_choice %s is not supported: how this model writes calls is not "
                         "known (--tool-call-parser says it); with \"none\" the tools still go to "
                         "the chat template",
                         text);
    e->code = "unsupported_parameter";
out:
    return st;
}
