SELECT id, prefix, request, record FROM live
