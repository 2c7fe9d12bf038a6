/* Models in Hugging Face's cache on this machine, as huggingface_hub lays it out
 * (huggingface.co/docs/huggingface_hub/guides/manage-cache):
 * models--ORG--NAME/refs/main says which of models--ORG--NAME/snapshots is the newest. Nothing is
 * downloaded. */
#ifndef TESSERA_SERVER_HUB_CACHE_H
#define TESSERA_SERVER_HUB_CACHE_H

#include "config/base.h"

/* Finds "ORG/NAME" in the cache that HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME name, in this
 * order. path: the snapshot's directory. false: it has no such form, or is not there. */
bool hub_cache_find(const char *name, char *path, size_t cap);
/* The other way: ORG/NAME of the directory of a snapshot. false: it is none. */
bool hub_cache_name(const char *path, char *name, size_t cap);

#endif
