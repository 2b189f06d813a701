package canary

// Uncalled is the error for one of several API servers that calls no agent.
func Uncalled(server string) error { return &uncalled{server} }
