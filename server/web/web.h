/* The files of server/web, embedded by the build; NUL-terminated. */
#ifndef TESSERA_SERVER_WEB_WEB_H
#define TESSERA_SERVER_WEB_WEB_H

extern const char web_index[];
extern const char web_style[];
extern const char web_script[];

#endif
