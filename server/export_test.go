package server

// Patterns are those of all that is served.
func (s *Server) Patterns() []string {
	var patterns []string
	for _, r := range s.routes() {
		patterns = append(patterns, r.pattern)
	}
	return patterns
}
