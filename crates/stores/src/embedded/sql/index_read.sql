SELECT entries FROM index_{ends}
