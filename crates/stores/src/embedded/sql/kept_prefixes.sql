SELECT prefix FROM kept_{ends}
