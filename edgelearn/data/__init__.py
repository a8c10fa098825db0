"""Pictures: the flower photographs, folders of pictures, and drawings made by the program itself. Sound: in audio/.

Nothing here is imported until it is asked for, so that the package stays quick to import.
"""
